"""The command `unmask`: one file per verb. A verb is a typed function; its signature is its command line."""
