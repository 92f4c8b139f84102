"""Models behind an address: an engine that steps many drafts at once, and the HTTP app in front of it."""
