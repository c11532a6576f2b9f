"""The values that workflows, activities and clients exchange: inputs, plans, requests, results, statuses."""
