"""Training on Ray clusters: ``gnnkit.launch(train, loader, engine=gnnkit.Ray(num_workers=4))``, over Ray Train.

Ray listens on ports and pickles, so that its driver is a child of the process that asks for it (``driver``), never that process itself;
it joins the cluster that the user names, or starts one on this host. ``docs/security.md`` says what that brings.
"""
