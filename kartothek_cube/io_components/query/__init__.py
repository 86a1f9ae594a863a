"""Query engine ("Query System" in the specification): logical plan, physical plan, scans, joins, output."""
