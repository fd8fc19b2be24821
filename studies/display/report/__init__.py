"""The report: what a database holds of some studies, as one HTML file that opens offline."""
