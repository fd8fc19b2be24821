"""Many studies as one queue over all devices, and how far their winners serve."""
