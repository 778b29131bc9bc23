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
	r := l.options.Recorder
	top := TopKeys{Mode: l.options.Keys, Hottest: []Key{}, Denied: []Key{}, Unmatched: []Key{}, Callers: []Key{}, SampledShare: Value(r.sampledShare())}
	if l.options.Keys == KeysOff {
		return top
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	appendTop := func(list []Key, s *sketch, n int) []Key {
		for _, e := range s.top(n, accept) {
			list = append(list, l.newKey(&e))
		}
		return list
	}
	top.Hottest, top.Denied = appendTop(top.Hottest, r.hottest, maxKeys), appendTop(top.Denied, r.denied, maxKeys)
	top.Unmatched = appendTop(top.Unmatched, r.examples, maxExamples)
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
		k.IsShare = e.limit != nil && e.capacity != e.limit.Limit.Capacity()
	}
	if d := e.denials; d.areActive(time.Now().UnixMicro()) {
		k.LimitedSince = new(time.UnixMicro(d.first).UTC())
		if d.passesAt != neverPasses {
			k.PassesAt = new(time.UnixMicro(d.passesAt).UTC())
		}
	}
	return k
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

// keyText returns the text that viewers see for a key: the key or its hash.
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

// hashedKeys returns a copy of top with hashes in place of the keys.
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
