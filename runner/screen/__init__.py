"""What all tools print with: tables that fit the width, and the pager."""
