package statsd

import (
	"maps"
	"slices"
	"strings"
	"unicode"
)

// Tag is a name with a value.
type Tag struct{ Name, Value string }

// tagReplacer replaces the characters that a value of EXTRA_TAGS can't contain.
var tagReplacer = strings.NewReplacer(".", "_", ":", "_", "|", "_")

// replaceControls replaces control characters in text by _. A value of a request can contain a line break, for example.
func replaceControls(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '_'
		}
		return r
	}, text)
}

// dogStatsdReplacer replaces the characters that end a tag in a line of DogStatsD.
var dogStatsdReplacer = strings.NewReplacer(",", "_", "|", "_")

// sortedTags returns tags sorted by name, with the values that envoyproxy/ratelimit sends.
func sortedTags(tags map[string]string) []Tag {
	var tagList []Tag
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		tagList = append(tagList, Tag{name, tagReplacer.Replace(tags[name])})
	}
	return tagList
}

// plainName returns a name for servers without tags. An extra tag becomes a segment .__name=value of the name.
func plainName(name string, metricTags, extraTags []Tag) string {
	for _, t := range metricTags {
		name += "." + tagReplacer.Replace(t.Value)
	}
	for _, t := range extraTags {
		name += ".__" + t.Name + "=" + t.Value
	}
	return name
}

// translation is the name of a metric in statsd. If label is not empty, the value of this label replaces the *.
type translation struct{ name, label string }

// translations has the names of envoyproxy/ratelimit for metrics of Prometheus, except for the metrics of rules.
var translations = map[string]translation{
	"ratelimit_service_config_load_success":          {"ratelimit.service.config_load_success", ""},
	"ratelimit_service_config_load_error":            {"ratelimit.service.config_load_error", ""},
	"ratelimit_service_global_shadow_mode":           {"ratelimit.service.global_shadow_mode", ""},
	"ratelimit_service_rate_limit_domain_not_found":  {"ratelimit.service.rate_limit.*.domain_not_found", "domain"},
	"ratelimit_service_should_rate_limit_error":      {"ratelimit.service.call.should_rate_limit.*", "err_type"},
	"ratelimit_service_total_requests":               {"ratelimit_server.*.total_requests", "grpc_method"},
	"ratelimit_service_response_time_seconds":        {"ratelimit_server.*.response_time", "grpc_method"},
	"ratelimit_redis_pool_cx_active":                 {"ratelimit.redis_pool.cx_active", ""},
	"ratelimit_redis_pool_cx_total":                  {"ratelimit.redis_pool.cx_total", ""},
	"ratelimit_redis_pool_cx_local_close":            {"ratelimit.redis_pool.cx_local_close", ""},
	"ratelimit_redis_per_second_pool_cx_active":      {"ratelimit.redis_per_second_pool.cx_active", ""},
	"ratelimit_redis_per_second_pool_cx_total":       {"ratelimit.redis_per_second_pool.cx_total", ""},
	"ratelimit_redis_per_second_pool_cx_local_close": {"ratelimit.redis_per_second_pool.cx_local_close", ""},

	"go_goroutines":                   {"ratelimit.go.numGoroutine", ""},
	"go_memstats_alloc_bytes":         {"ratelimit.go.alloc", ""},
	"go_memstats_alloc_bytes_total":   {"ratelimit.go.totalAlloc", ""},
	"go_memstats_frees_total":         {"ratelimit.go.frees", ""},
	"go_memstats_heap_alloc_bytes":    {"ratelimit.go.heapAlloc", ""},
	"go_memstats_heap_idle_bytes":     {"ratelimit.go.heapIdle", ""},
	"go_memstats_heap_inuse_bytes":    {"ratelimit.go.heapInuse", ""},
	"go_memstats_heap_objects":        {"ratelimit.go.heapObjects", ""},
	"go_memstats_heap_released_bytes": {"ratelimit.go.heapReleased", ""},
	"go_memstats_heap_sys_bytes":      {"ratelimit.go.heapSys", ""},
	"go_memstats_mallocs_total":       {"ratelimit.go.mallocs", ""},
	"go_memstats_next_gc_bytes":       {"ratelimit.go.nextGC", ""},
	"go_memstats_sys_bytes":           {"ratelimit.go.sys", ""},
}
