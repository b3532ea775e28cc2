"""What must hold on a cluster: real training jobs, every rank accounted for."""
