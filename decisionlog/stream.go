package decisionlog

import (
	"bytes"
	"net/http"
	"time"
)

// ContentType is the type of the stream.
const ContentType = "application/x-ndjson"

const (
	// streamBuffer is the number of records that a slow reader of the stream can be behind.
	streamBuffer = 4096

	// maxStreamWrite is the number of records that one write to the reader can have.
	maxStreamWrite = 256

	// dropsPause is the time between two reports of dropped records.
	dropsPause = time.Second

	// HeartbeatPause is the time after which a stream without records sends an empty line.
	HeartbeatPause = 10 * time.Second

	// writeTimeout is the time after which a reader that takes nothing is disconnected.
	writeTimeout = 30 * time.Second
)

// ServeHTTP streams live records as lines of JSON, until the client leaves. The query is
// that of ParseFilter. The stream tells how many records were dropped because the client
// was too slow.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "decisions: got method "+r.Method+", want GET", http.StatusMethodNotAllowed)
		return
	}
	filter, err := ParseFilter(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s, err := h.Subscribe(filter, streamBuffer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer s.Close()
	w.Header().Set("Content-Type", ContentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	st := stream{Subscription: s, controller: http.NewResponseController(w), w: w}
	st.run(r)
}

// stream writes a Subscription to a client.
type stream struct {
	*Subscription
	w          http.ResponseWriter
	controller *http.ResponseController
	lines      bytes.Buffer
	reported   uint64 // of the dropped records
}

// run writes until the client leaves.
func (s *stream) run(r *http.Request) {
	drops := time.NewTicker(dropsPause)
	defer drops.Stop()
	heartbeat := time.NewTicker(HeartbeatPause)
	defer heartbeat.Stop()
	for s.write() {
		select {
		case <-r.Context().Done():
			return
		case record := <-s.records:
			appendLine(&s.lines, &record)
			for n := 1; n < maxStreamWrite && len(s.records) > 0; n++ {
				record = <-s.records
				appendLine(&s.lines, &record)
			}
			heartbeat.Reset(HeartbeatPause)
		case now := <-drops.C:
			if dropped := s.Dropped(); dropped > s.reported {
				appendLine(&s.lines, Drops{now.UTC(), dropped - s.reported, "reader too slow"})
				s.reported = dropped
			}
		case <-heartbeat.C:
			s.lines.WriteByte('\n')
		}
	}
}

// write sends the lines to the client. It reports false if the client has gone.
func (s *stream) write() bool {
	_ = s.controller.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := s.w.Write(s.lines.Bytes())
	s.lines.Reset()
	return err == nil && s.controller.Flush() == nil
}
