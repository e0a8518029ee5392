"""One run on several processes and machines: shards, runs that are taken up, fleets, gangs."""
