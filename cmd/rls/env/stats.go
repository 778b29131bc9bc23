package env

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/seed-81f232ab/rls/internal/observe/statsd"
)

// The places that StatsSink returns.
const (
	SinkNone      = ""
	SinkStatsd    = "statsd"
	SinkDogStatsd = "dogstatsd"
	SinkLog       = "log"
)

// StatsSink returns the place to which metrics are sent. As in the incumbent, this is the log if
// USE_STATSD is set to false and no other place is set.
func (s *Settings) StatsSink() string {
	switch {
	case s.DisableStats:
		return SinkNone
	case s.UseDogStatsd:
		return SinkDogStatsd
	case s.UseStatsd:
		return SinkStatsd
	case os.Getenv("USE_STATSD") != "" && !s.UsePrometheus:
		return SinkLog
	}
	return SinkNone
}

func (s *Settings) checkStats(ps *problems) {
	if s.DisableStats {
		return
	}
	ps.addIf(s.UseStatsd && s.UseDogStatsd,
		"USE_STATSD and USE_DOG_STATSD: got true for both, want true for one, because both send to STATSD_HOST, and the server would count twice")
	if s.UseDogStatsd {
		_, errs := s.Mogrifiers()
		*ps = append(*ps, errs...)
	}
}

const mogrifierPrefix = "DOG_STATSD_MOGRIFIER_"

var mogrifierParts = []string{"_PATTERN", "_NAME", "_TAGS"}

// Mogrifiers returns the mogrifiers of USE_DOG_STATSD_MOGRIFIERS.
func (s *Settings) Mogrifiers() (mogrifiers []statsd.Mogrifier, errs []error) {
	for _, name := range s.DogStatsdMogrifiers {
		prefix := mogrifierPrefix + strings.ToUpper(name)
		mogrifier := statsd.Mogrifier{Name: os.Getenv(prefix + "_NAME")}
		for _, part := range mogrifierParts[:2] {
			if os.Getenv(prefix+part) == "" {
				errs = append(errs, fmt.Errorf("%s%s: got no value, want one, because USE_DOG_STATSD_MOGRIFIERS has %s", prefix, part, name))
			}
		}
		pattern, err := regexp.Compile(os.Getenv(prefix + "_PATTERN"))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s_PATTERN: %w", prefix, err))
		}
		mogrifier.Pattern = pattern
		if text := os.Getenv(prefix + "_TAGS"); text != "" {
			if mogrifier.Tags, err = parseTags(text); err != nil {
				errs = append(errs, fmt.Errorf("%s_TAGS: got %q, want a list such as name:$1,name:value", prefix, text))
			}
		}
		mogrifiers = append(mogrifiers, mogrifier)
	}
	return mogrifiers, errs
}

// names is a list of names, written NAME,NAME.
type names []string

func (n *names) Decode(text string) error {
	*n = nil
	for item := range strings.SplitSeq(text, ",") {
		name := strings.TrimSpace(item)
		if name == "" {
			return errors.New("empty name")
		}
		*n = append(*n, name)
	}
	return nil
}

// tags are tags of metrics, written name:value,name:value.
type tags map[string]string

func (t *tags) Decode(text string) error {
	list, err := parseTags(text)
	*t = tags{}
	for _, tag := range list {
		(*t)[tag.Name] = tag.Value
	}
	return err
}

// parseTags parses name:value,name:value. A value can contain colons.
func parseTags(text string) ([]statsd.Tag, error) {
	var list []statsd.Tag
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(item, ":")
		if name, value = strings.TrimSpace(name), strings.TrimSpace(value); name == "" || value == "" {
			return nil, errors.New("item is not name:value")
		}
		list = append(list, statsd.Tag{Name: name, Value: value})
	}
	return list, nil
}
