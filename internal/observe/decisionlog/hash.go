package decisionlog

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

const hashBytes = 8 // the bytes of a hash that Value writes as hexadecimal digits

// Hash replaces values in records by hashes, which a reader can only compare. A nil *Hash replaces nothing.
type Hash struct{ key []byte }

// NewHash returns a Hash with a secret key. It returns nil if the key is empty.
func NewHash(key string) *Hash {
	if key == "" {
		return nil
	}
	return &Hash{[]byte(key)}
}

// Value returns the first 16 hexadecimal digits of the HMAC-SHA256 of a value.
func (h *Hash) Value(value string) string {
	mac := hmac.New(sha256.New, h.key)
	_, _ = mac.Write([]byte(value)) // never fails
	return hex.EncodeToString(mac.Sum(nil)[:hashBytes])
}

// replaceValues replaces the values of the descriptor of record, the id of its hold, and its caller.
func (h *Hash) replaceValues(record *Record) {
	if h == nil {
		return
	}
	for i := range record.Descriptor {
		record.Descriptor[i].Value = h.Value(record.Descriptor[i].Value)
	}
	for _, text := range []*string{&record.Hold, &record.Caller} {
		if *text != "" {
			*text = h.Value(*text)
		}
	}
}
