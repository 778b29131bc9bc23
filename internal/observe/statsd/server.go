package statsd

import (
	"context"
	"iter"
	"net"
	"time"

	client "github.com/cactus/go-statsd-client/v5/statsd"
)

// packetBytes is the size of the packets to a server. Most networks carry this size whole.
const packetBytes = 1432

// sendTimeout bounds the time to connect to the server, and the time to send all points.
const sendTimeout = 2 * time.Second

// maxCallsPerLine bounds the calls that one line of a timer stands for. A line has the
// sample rate 1/calls with six decimals, which is exact enough up to this bound.
const maxCallsPerLine = 10_000

// server is a statsd server. It implements sink. Each flush has its own connection, so a
// restarted server or a new address of its name needs no special care.
type server struct {
	network, address string

	// isDog is true for DogStatsD, which has tags. mogrifiers are for DogStatsD only.
	isDog      bool
	mogrifiers []Mogrifier
	extraTags  []Tag

	conn net.Conn
}

// isOn implements sink.
func (s *server) isOn(context.Context) bool { return true }

// open implements sink.
func (s *server) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, s.network, s.address)
	if err != nil {
		return err
	}
	s.conn = conn
	return conn.SetDeadline(time.Now().Add(sendTimeout))
}

// send implements sink.
func (s *server) send(points iter.Seq[point]) error {
	packets := &packetWriter{conn: s.conn}
	lines, err := client.NewClientWithSender(packets, "", client.SuffixOctothorpe)
	if err != nil {
		return err
	}
	stats := lines.(*client.Client)
	stats.SetSamplerFunc(func(float32) bool { return true }) // points of timers are samples already
	for p := range points {
		name, tags := s.rename(p)
		switch p.kind {
		case counter:
			err = stats.Raw(name, formatValue(p.value)+"|c", 1, tags...)
		case gauge:
			err = stats.Raw(name, formatValue(p.value)+"|g", 1, tags...)
		case timer:
			for calls := p.calls; calls > 0 && err == nil; calls -= maxCallsPerLine {
				err = stats.TimingDuration(name, p.duration, 1/float32(min(calls, maxCallsPerLine)), tags...)
			}
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = packets.write()
	}
	if closeErr := s.conn.Close(); err == nil {
		err = closeErr
	}
	return err
}

// rename returns the name and the tags of a point for this server.
func (s *server) rename(p point) (string, []client.Tag) {
	if !s.isDog {
		return oneLine(plainName(p.name, p.tags, s.extraTags)), nil
	}
	name, tags := mogrify(s.mogrifiers, p.name)
	var all []client.Tag
	for _, group := range [][]Tag{s.extraTags, p.tags, tags} {
		for _, t := range group {
			all = append(all, client.Tag{t.Name, oneLine(dogSeparators.Replace(t.Value))})
		}
	}
	return oneLine(name), all
}

// packetWriter collects lines to packets. It implements client.Sender.
type packetWriter struct {
	conn   net.Conn
	packet []byte
}

// Send adds a line to the packet, and writes the packet first if it has no room.
func (w *packetWriter) Send(line []byte) (int, error) {
	if len(w.packet) > 0 && len(w.packet)+len(line)+1 > packetBytes {
		if err := w.write(); err != nil {
			return 0, err
		}
	}
	w.packet = append(append(w.packet, line...), '\n')
	return len(line), nil
}

// Close implements client.Sender. The server closes the connection.
func (w *packetWriter) Close() error { return nil }

// write writes the packet and begins a new one.
func (w *packetWriter) write() error {
	if len(w.packet) == 0 {
		return nil
	}
	_, err := w.conn.Write(w.packet)
	w.packet = w.packet[:0]
	return err
}
