"""The built-in tools. Nothing outside imports them: a recipe names them (`agentrl list tools`)."""
