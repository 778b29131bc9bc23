package env

import (
	"fmt"
	"strings"
	"time"
)

// Timeout is a duration of at least a millisecond, or AutoTimeout.
type Timeout time.Duration

// AutoTimeout is the Timeout that follows a measurement, written auto.
const AutoTimeout Timeout = 0

// Decode implements envconfig.Decoder.
func (t *Timeout) Decode(text string) error {
	if strings.EqualFold(text, "auto") {
		*t = AutoTimeout
		return nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < time.Millisecond {
		err = fmt.Errorf("got %v, want at least 1ms", d)
	}
	*t = Timeout(d)
	return err
}

// String returns the text of t in messages.
func (t Timeout) String() string {
	if t == AutoTimeout {
		return "auto"
	}
	return time.Duration(t).String()
}
