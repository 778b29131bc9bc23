package live

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// KeyMode is what TopKeys shows of keys.
type KeyMode string

// The modes.
const (
	KeysOn     KeyMode = "on"
	KeysHashed KeyMode = "hashed" // an HMAC of each key, with a key of the process
	KeysOff    KeyMode = "off"
)

func newHashKey() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return key
}

// topKeys returns the busiest keys that accept reports true for. If accept is nil, topKeys
// returns the busiest of all keys.
func (l *Live) topKeys(accept func(*entry) bool) TopKeys {
	r := l.o.Recorder
	top := TopKeys{Mode: l.o.Keys, Hottest: []Key{}, Denied: []Key{}, SampledShare: Value(r.sampledShare())}
	if l.o.Keys == KeysOff {
		return top
	}
	r.mu.Lock()
	hottest, hottestTotal := r.hotKeys.top(maxKeys, accept), r.hotKeys.total
	denied, deniedTotal := r.deniedKeys.top(maxKeys, accept), r.deniedKeys.total
	r.mu.Unlock()
	for i := range hottest {
		top.Hottest = append(top.Hottest, l.newKey(&hottest[i], hottestTotal))
	}
	for i := range denied {
		top.Denied = append(top.Denied, l.newKey(&denied[i], deniedTotal))
	}
	return top
}

// newKey describes an entry. total is the sum of the counts of all keys.
func (l *Live) newKey(e *entry, total float64) Key {
	k := Key{
		Key: l.keyText(e.key), Rule: e.rule.Path, Limit: e.limit.String(),
		Rate: Value(e.rate), DeniedRate: Value(e.deniedRate), Share: Value((e.count - e.overcount) / total),
	}
	if e.capacity > 0 {
		spent, capacity := e.spent, e.capacity
		k.Spent, k.Capacity = &spent, &capacity
	}
	return k
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
func (l *Live) hashKeyText(text string) string {
	mac := hmac.New(sha256.New, l.hashSecret)
	mac.Write([]byte(text))
	return "#" + hex.EncodeToString(mac.Sum(nil)[:8])
}

// hashedKeys returns top with hashed keys.
func (l *Live) hashedKeys(top TopKeys) TopKeys {
	if top.Mode != KeysOn {
		return top
	}
	top.Mode = KeysHashed
	hashAll := func(keys []Key) []Key {
		hashed := append([]Key{}, keys...)
		for i := range hashed {
			hashed[i].Key = l.hashKeyText(hashed[i].Key)
		}
		return hashed
	}
	top.Hottest, top.Denied = hashAll(top.Hottest), hashAll(top.Denied)
	return top
}
