package events

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
)

// Regions logs what happens to the Redis of all regions.
type Regions struct {
	*Events

	// Address has the addresses of the Redis, without secrets.
	Address string

	mu           sync.Mutex // guards the fields below
	failingSince time.Time  // zero while the Redis answers
	differences  string     // the last logged differences of the settings of the regions
}

// TripEnded is called after each trip to the Redis of all regions.
func (r *Regions) TripEnded(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil && r.failingSince.IsZero():
		r.failingSince = time.Now()
		r.Log.Error("global Redis unavailable; this region goes on with the hits that it has bought, and then with its floor", "address", r.Address, "error", err)
	case err == nil && !r.failingSince.IsZero():
		r.Log.Info("global Redis available again; this region buys hits again", "address", r.Address, "unavailable_for", time.Since(r.failingSince).Round(time.Second))
		r.failingSince = time.Time{}
	}
}

// SettingsCompared is called with the settings of each region whose settings differ from the settings of this region.
func (r *Regions) SettingsCompared(settings string, others map[string]string) {
	var texts []string
	for _, region := range slices.Sorted(maps.Keys(others)) {
		texts = append(texts, fmt.Sprintf("%s has %s", region, others[region]))
	}
	differences := strings.Join(texts, "; ")
	r.mu.Lock()
	defer r.mu.Unlock()
	if differences == r.differences {
		return
	}
	r.differences = differences
	if differences == "" {
		r.Log.Info("settings of all regions are equal again")
		return
	}
	r.Log.Error("settings of regions differ, so all regions together can admit more or less than a limit; make the settings equal", "this_region", settings, "other_regions", differences)
}

// Findings returns the problems of the regions for the live page.
func (r *Regions) Findings() (findings []redis.Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.failingSince.IsZero() {
		findings = append(findings, redis.Finding{
			Role: redis.RoleGlobal, Address: r.Address, Check: redis.CheckConnection, Level: redis.LevelProblem,
			Text:   fmt.Sprintf("this region is cut off from the global Redis since %s; it admits what it has bought, and then its floor", r.failingSince.UTC().Format(time.TimeOnly+" UTC")),
			Advice: "check the network to the other regions, and that the Redis of REDIS_GLOBAL_URL runs",
		})
	}
	if r.differences != "" {
		findings = append(findings, redis.Finding{
			Role: redis.RoleGlobal, Address: r.Address, Check: redis.CheckRegions, Level: redis.LevelProblem,
			Text: "the settings of the regions differ: " + r.differences, Advice: "make REGIONS, REGION_FLOOR and REGION_WASTE equal in all regions",
		})
	}
	return findings
}
