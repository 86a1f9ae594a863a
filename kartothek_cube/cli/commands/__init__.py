"""The commands; their modules are imported when a command is called."""
