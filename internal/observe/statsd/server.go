package statsd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"time"
)

const packetBytes = 1432 // most networks do not split packets of this size

const sendTimeout = 2 * time.Second // the time to connect to the server, and then to send all points

// maxCallsPerLine bounds the calls in one line of a timer. The sample rate of 10,000 calls is 0.0001. A smaller rate
// would lose digits, because a line has only six decimals.
const maxCallsPerLine = 10_000

// serverSink is a sink that opens a connection for each flush, so that it notices a new address of the server.
type serverSink struct {
	*Server
	extraTags []Tag
}

func (s *serverSink) flush(ctx context.Context, readPoints func() (iter.Seq[point], error)) error {
	dialer := net.Dialer{Timeout: sendTimeout}
	conn, err := dialer.DialContext(ctx, s.Network, s.address())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	points, readErr := readPoints()
	packet := bufio.NewWriterSize(conn, packetBytes)
	for p := range points {
		name, tags := s.rename(p)
		for value := range p.values() {
			line := name + ":" + value + tagsText(tags) + "\n"
			if len(line) > packet.Available() {
				_ = packet.Flush() // the last Flush returns this error too
			}
			_, _ = packet.Write([]byte(line))
		}
	}
	return errors.Join(readErr, packet.Flush())
}

// values returns, for each line of p, the part after the name: the value, the type and the sample rate, such as
// "5|ms|@0.5".
func (p *point) values() iter.Seq[string] {
	return func(yield func(string) bool) {
		switch p.kind {
		case counter:
			yield(formatValue(p.value) + "|c")
		case gauge:
			yield(formatValue(p.value) + "|g")
		case timer:
			value := formatValue(float64(p.duration)/float64(time.Millisecond)) + "|ms"
			for calls := p.calls; calls > 0; calls -= maxCallsPerLine {
				line := value
				if calls > 1 {
					line += fmt.Sprintf("|@%.6f", 1/float64(min(calls, maxCallsPerLine)))
				}
				if !yield(line) {
					return
				}
			}
		}
	}
}

// tagsText returns the tags of a line: "|#name:value,name:value".
func tagsText(tags []Tag) string {
	text, separator := "", "|#"
	for _, t := range tags {
		text += separator + t.Name + ":" + t.Value
		separator = ","
	}
	return text
}

// rename returns the name and the tags of p in a line for the server.
func (s *serverSink) rename(p point) (string, []Tag) {
	if !s.DogStatsD {
		return replaceControls(plainName(p.name, p.tags, s.extraTags)), nil
	}
	name, tags := applyMogrifiers(s.Mogrifiers, p.name)
	tags = slices.Concat(s.extraTags, p.tags, tags)
	for i := range tags {
		tags[i].Value = replaceControls(dogStatsdReplacer.Replace(tags[i].Value))
	}
	return replaceControls(name), tags
}
