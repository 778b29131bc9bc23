package redis

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
)

const (
	scanCount       = 1000 // keys that Redis examines in one step of a search
	deleteCount     = 500  // keys that rls deletes in one step
	maxPatternBytes = 40   // the most bytes of a key in the pattern of a search; even a shortened name has more bytes of its key
)

// ResetPrefix implements backend.PrefixResetter. It searches all keys of each Redis. The reset can miss hits
// that are charged during the search.
func (l *Limiter) ResetPrefix(ctx context.Context, p backend.KeyPrefix, maxCounters int, dryRun bool) (backend.PrefixReset, error) {
	s := &prefixSearch{prefix: p, keyPrefix: l.options.KeyPrefix, maxCounters: maxCounters, counters: map[string]bool{}, unclearCounters: map[string]bool{}}
	keys := make([][]string, len(l.instances))
	for i, instance := range l.instances {
		s.keys = nil
		if err := s.search(ctx, instance); err != nil {
			return backend.PrefixReset{}, prefixError("search", instance, err)
		}
		keys[i] = s.keys
	}
	r := backend.PrefixReset{Counters: len(s.counters), UnclearCounters: len(s.unclearCounters)}
	if r.Counters > maxCounters {
		return r, fmt.Errorf("%w: got more than %d", backend.ErrTooManyCounters, maxCounters)
	}
	if dryRun {
		return r, nil
	}
	for i, instance := range l.instances {
		for chunk := range slices.Chunk(keys[i], deleteCount) {
			if err := instance.deleteKeys(ctx, chunk); err != nil {
				return r, prefixError("delete", instance, err)
			}
		}
	}
	return r, nil
}

func prefixError(step string, instance *redisInstance, err error) error {
	if errors.Is(err, backend.ErrTooManyCounters) {
		return err
	}
	if strings.HasPrefix(err.Error(), "NOPERM") {
		return fmt.Errorf("%s keys of %s: %w; give the user of rls the right +scan (docs/redis.md)", step, instance.name, err)
	}
	return fmt.Errorf("%s keys of %s: %w", step, instance.name, newOutageError(err))
}

func (r *redisInstance) deleteKeys(ctx context.Context, keys []string) error {
	commands := make([]goredis.Cmder, len(keys))
	for i, key := range keys {
		commands[i] = goredis.NewIntCmd(ctx, "DEL", key)
	}
	runPipeline(ctx, r.client, commands)
	return firstError(commands)
}

type prefixSearch struct {
	prefix      backend.KeyPrefix
	keyPrefix   string // Options.KeyPrefix
	maxCounters int

	mu              sync.Mutex      // guards the fields below
	counters        map[string]bool // the counters with the prefix; the key is the name without the window
	unclearCounters map[string]bool // counters that may have the prefix: their shortened names have too few bytes of the key
	keys            []string        // names of the counters in one Redis
}

// search adds the counters in instance. If it finds more than maxCounters, it ends early.
func (s *prefixSearch) search(ctx context.Context, instance *redisInstance) error {
	pattern := globEscapes.Replace(s.keyPrefix) + "*:" + globEscapes.Replace(s.prefix.Start[:min(len(s.prefix.Start), maxPatternBytes)]) + "*"
	return instance.client.forEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
		for cursor := uint64(0); ; {
			names, nextCursor, err := node.Scan(ctx, cursor, pattern, scanCount).Result()
			if err != nil {
				return err
			}
			if !s.add(names) || nextCursor == 0 {
				return nil
			}
			cursor = nextCursor
		}
	})
}

// add adds the counters with these names. It returns false if s now has more than maxCounters.
func (s *prefixSearch) add(names []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		counter, key, isWholeKey, ok := parseName(s.keyPrefix, name)
		isLongEnough := isWholeKey || len(key) > len(s.prefix.Start)
		switch {
		case !ok:
		case isLongEnough && s.prefix.Matches(key):
			s.counters[counter] = true
			s.keys = append(s.keys, name)
		case !isLongEnough && strings.HasPrefix(s.prefix.Start, key):
			s.unclearCounters[counter] = true
		}
	}
	return len(s.counters) <= s.maxCounters
}

// counterPattern matches the name of a counter after Options.KeyPrefix; see keyspace.
var counterPattern = regexp.MustCompile(`(?s)^(?:\{[^}]*\})?(?:` + layoutState + `[0-9A-Za-z]+([:#])(.*)|` + layoutCount + `[0-9A-Za-z]+([:#])(.*)(@[^@]*))$`)

// parseName parses the name of a counter. counter is the name without the window. key is the key of the hits if
// isWholeKey is true, and the start of the key otherwise.
func parseName(keyPrefix, name string) (counter, key string, isWholeKey, ok bool) {
	text, ok := strings.CutPrefix(name, keyPrefix)
	match := counterPattern.FindStringSubmatch(text)
	if !ok || match == nil {
		return "", "", false, false
	}
	separator, key, window := match[1]+match[3], match[2]+match[4], match[5]
	counter = strings.TrimSuffix(name, window)
	switch {
	case separator == ":":
		return counter, key, true, true
	case len(key) > hashLength && key[hashLength] == ':':
		return counter, key[hashLength+1:], false, true
	}
	return "", "", false, false
}

var globEscapes = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
