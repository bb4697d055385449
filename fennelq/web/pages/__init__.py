"""The pages: a module has the functions of one page and of what can be done there."""
