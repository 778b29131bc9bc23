package main

import "time"

// missingReplicas has replicas of rls that wait for a replica of Redis, which does not exist.
func missingReplicas() *plan {
	p := newNamedPlan(4 * time.Second)
	p.waitReplicas = 1
	return p
}

// farRedis has a round trip of 35 ms. The replicas measure it, and choose three times as much as timeout.
func farRedis() *plan {
	p := newNamedPlan(4 * time.Second)
	p.networkDelay, p.distance, p.autoTimeout, p.timeout = 100*time.Microsecond, 17300*time.Microsecond, true, 110*time.Millisecond
	return p
}

// deletedCounter has an operator who deletes the counter of the tight limit twice. Each time the replicas
// know that the counter has a time to live.
func deletedCounter() *plan {
	p := newNamedPlan(4 * time.Second)
	p.addDeletion(time.Second)
	p.addDeletion(2 * time.Second)
	return p
}
