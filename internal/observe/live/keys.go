package live

import (
	"strings"
	"time"
)

// KeyMode is what TopKeys shows of keys.
type KeyMode string

// The modes.
const (
	KeysOn     KeyMode = "on"
	KeysHashed KeyMode = "hashed" // an HMAC of each key, with a key of the process
	KeysOff    KeyMode = "off"
)

// topKeys returns the busiest keys that accept reports true for. A nil accept accepts all.
func (l *Live) topKeys(accept func(*entry) bool) TopKeys {
	r := l.o.Recorder
	top := TopKeys{Mode: l.o.Keys, Hottest: []Key{}, Denied: []Key{}, Unmatched: []Key{}, Callers: []Key{}, SampledShare: Value(r.sampledShare())}
	if l.o.Keys == KeysOff {
		return top
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	describe := func(list []Key, s *sketch, n int) []Key {
		for _, e := range s.top(n, accept) {
			list = append(list, l.newKey(&e))
		}
		return list
	}
	top.Hottest, top.Denied = describe(top.Hottest, r.hottest, maxKeys), describe(top.Denied, r.denied, maxKeys)
	top.Unmatched = describe(top.Unmatched, r.examples, maxExamples)
	for _, e := range r.callers.top(maxCallers, nil) {
		top.Callers = append(top.Callers, Key{Key: l.keyText(e.key), Rate: Value(e.rate), DeniedRate: Value(e.deniedRate), Share: Value(e.share)})
	}
	return top
}

func (l *Live) newKey(e *rankedEntry) Key {
	k := Key{Key: l.keyText(e.key), Rate: Value(e.rate), DeniedRate: Value(e.deniedRate), Share: Value(e.share)}
	switch {
	case e.rule != nil:
		k.Rule, k.Limit = e.rule.Path, e.limit.String()
	case e.isDomainUnknown:
		k.Rule, k.Limit = pathOf(e.key), "unknown domain"
	default:
		k.Rule, k.Limit = pathOf(e.key), "no rule"
	}
	if e.capacity > 0 {
		k.Spent, k.Capacity = &e.spent, &e.capacity
	}
	if d := e.denials; d.areActive(time.Now().UnixMicro()) {
		k.LimitedSince = new(time.UnixMicro(d.since).UTC())
		if d.passesAt != neverPasses {
			k.PassesAt = new(time.UnixMicro(d.passesAt).UTC())
		}
	}
	return k
}

// pathOf returns the domain and the keys of a descriptor as the path of a rule, with the escapes of key.
func pathOf(key []byte) string {
	parts := strings.Split(string(key), "|")
	for i, part := range parts {
		parts[i], _, _ = strings.Cut(part, "=")
	}
	return strings.Join(parts, " > ")
}

// keyText returns what viewers see of a key.
func (l *Live) keyText(key []byte) string {
	text := strings.ToValidUTF8(string(key), "�")
	if len(key) == maxKeyBytes {
		text += "…"
	}
	if l.o.Keys == KeysHashed {
		return l.hashKeyText(text)
	}
	return text
}

// hashKeyText returns the hash of a key. Only this process makes the same hash of the same key.
func (l *Live) hashKeyText(text string) string { return "#" + l.hash.Value(text) }

func (l *Live) hashedKeys(top TopKeys) TopKeys {
	if top.Mode != KeysOn {
		return top
	}
	top.Mode, top.Hidden = KeysHashed, true
	hashAll := func(keys []Key) []Key {
		hashed := append([]Key{}, keys...)
		for i := range hashed {
			hashed[i].Key = l.hashKeyText(hashed[i].Key)
		}
		return hashed
	}
	top.Hottest, top.Denied, top.Unmatched, top.Callers = hashAll(top.Hottest), hashAll(top.Denied), hashAll(top.Unmatched), hashAll(top.Callers)
	return top
}
