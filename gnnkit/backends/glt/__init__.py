"""graphlearn-torch's own engine behind the loader, in supervised background processes."""
