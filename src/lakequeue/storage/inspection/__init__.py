"""Reading tables that may be damaged; nothing here writes."""
