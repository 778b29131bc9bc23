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

const packetBytes = 1432 // most networks carry such packets whole

const sendTimeout = 2 * time.Second // to connect to the server, and to send all points

// maxCallsPerLine bounds the calls of one line of a timer, whose sample rate has six decimals.
const maxCallsPerLine = 10_000

// server is a sink with a connection for each flush, so a new address of its name needs no special care.
type server struct {
	*Server
	extraTags []Tag
}

func (s *server) flush(ctx context.Context, read func() (iter.Seq[point], error)) error {
	dialer := net.Dialer{Timeout: sendTimeout}
	conn, err := dialer.DialContext(ctx, s.Network, s.address())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	points, readErr := read()
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

// values returns the value, the type and the sample rate in each line of p.
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

func (s *server) rename(p point) (string, []Tag) {
	if !s.DogStatsD {
		return oneLine(plainName(p.name, p.tags, s.extraTags)), nil
	}
	name, tags := mogrify(s.Mogrifiers, p.name)
	all := slices.Concat(s.extraTags, p.tags, tags)
	for i := range all {
		all[i].Value = oneLine(dogSeparators.Replace(all[i].Value))
	}
	return oneLine(name), all
}
