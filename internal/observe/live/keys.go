package live

import (
	"strings"
	"time"
)

// KeyMode says how TopKeys shows keys.
type KeyMode string

// The modes.
const (
	KeysOn     KeyMode = "on"     // TopKeys shows the keys
	KeysHashed KeyMode = "hashed" // TopKeys shows a hash of each key, which only this process can make
	KeysOff    KeyMode = "off"    // TopKeys is empty
)

// topKeys returns the busiest keys. If accept is not nil, topKeys returns only keys for which accept returns true.
func (l *Live) topKeys(accept func(*entry) bool) TopKeys {
	recorder := l.options.Recorder
	topKeys := TopKeys{Mode: l.options.Keys, Hottest: []Key{}, Denied: []Key{}, Unmatched: []Key{}, Callers: []Key{}, SampledShare: Value(1 / float64(recorder.sampleInterval.Load()))}
	if l.options.Keys == KeysOff {
		return topKeys
	}
	denialsSince := time.Unix(0, max(recorder.lastLoss.Load(), recorder.lastReset.Load()))
	if since := l.options.Limits().Since; since != nil && since.After(denialsSince) {
		denialsSince = *since
	}
	isRedisUp := l.redis().Up
	recorder.mu.Lock()
	defer recorder.mu.Unlock()
	appendTop := func(list []Key, s *sketch, n int) []Key {
		for _, e := range s.topEntries(n, accept) {
			key := l.newKey(&e, denialsSince.UnixMicro())
			if key.IsShare && isRedisUp { // the outage is over
				key.Spent, key.Capacity, key.IsShare = nil, nil, false
			}
			list = append(list, key)
		}
		return list
	}
	topKeys.Hottest, topKeys.Denied = appendTop(topKeys.Hottest, recorder.hottestKeys, maxKeys), appendTop(topKeys.Denied, recorder.deniedKeys, maxKeys)
	topKeys.Unmatched = appendTop(topKeys.Unmatched, recorder.examples, maxExamples)
	for _, e := range recorder.callers.topEntries(maxCallers, nil) {
		topKeys.Callers = append(topKeys.Callers, Key{Key: l.keyText(e.key), Rate: Value(e.rate), DeniedRate: Value(e.deniedRate), Share: Value(e.share)})
	}
	return topKeys
}

// newKey describes a key. Denials before denialsSince, in Unix microseconds, may be over.
func (l *Live) newKey(entry *rankedEntry, denialsSince int64) Key {
	key := Key{Key: l.keyText(entry.key), Rate: Value(entry.rate), DeniedRate: Value(entry.deniedRate), Share: Value(entry.share), Shadow: entry.isShadow}
	switch {
	case entry.rule != nil:
		key.Rule, key.Limit = entry.rule.Path, entry.limit.String()
	case entry.isDomainUnknown:
		key.Rule, key.Limit = pathOf(entry.key), "unknown domain"
	default:
		key.Rule, key.Limit = pathOf(entry.key), "no rule"
	}
	if entry.capacity > 0 {
		key.Spent, key.Capacity = &entry.spent, &entry.capacity
		key.IsShare = entry.limit != nil && entry.capacity != entry.limit.Limit.Capacity()
	}
	if d := entry.denials; d.areActive(time.Now().UnixMicro()) && d.lastTime >= denialsSince {
		key.LimitedSince = new(time.UnixMicro(d.firstTime).UTC())
		if d.retryTime != neverPasses {
			key.PassesAt = new(time.UnixMicro(d.retryTime).UTC())
		}
	}
	return key
}

// pathOf returns the domain and the entry keys of a descriptor like the path of a rule: "shop|tenant=acme" gives
// "shop > tenant". Escaped characters of key stay escaped.
func pathOf(key []byte) string {
	parts := strings.Split(string(key), "|")
	for i, part := range parts {
		parts[i], _, _ = strings.Cut(part, "=")
	}
	return strings.Join(parts, " > ")
}

func (l *Live) keyText(key []byte) string {
	text := strings.ToValidUTF8(string(key), "�")
	if len(key) == maxKeyBytes {
		text += "…"
	}
	if l.options.Keys == KeysHashed {
		return l.hashKeyText(text)
	}
	return text
}

// hashKeyText returns the hash of a key. Another process makes another hash of the same key.
func (l *Live) hashKeyText(text string) string { return "#" + l.hash.Value(text) }

func (l *Live) hashedKeys(topKeys TopKeys) TopKeys {
	if topKeys.Mode != KeysOn {
		return topKeys
	}
	topKeys.Mode, topKeys.Hidden = KeysHashed, true
	hashAll := func(keys []Key) []Key {
		hashes := append([]Key{}, keys...)
		for i := range hashes {
			hashes[i].Key = l.hashKeyText(hashes[i].Key)
		}
		return hashes
	}
	topKeys.Hottest, topKeys.Denied, topKeys.Unmatched, topKeys.Callers = hashAll(topKeys.Hottest), hashAll(topKeys.Denied), hashAll(topKeys.Unmatched), hashAll(topKeys.Callers)
	return topKeys
}
