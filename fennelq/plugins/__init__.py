"""Extensions that come with fennelq: `app.use(OpenTelemetry())`. Each is a folder of its own, which nothing else
imports, and needs an extra."""
