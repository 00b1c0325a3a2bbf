"""Parts of pages that are too long for a view, and those that several pages share."""
