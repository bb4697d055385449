"""What the code of an app declares: tasks, schedules, middleware, plugins, providers."""
