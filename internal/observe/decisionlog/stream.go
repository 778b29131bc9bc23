package decisionlog

import (
	"bytes"
	"net/http"
	"time"
)

// ContentType is the content type of the stream.
const ContentType = "application/x-ndjson"

const (
	// streamBuffer is the maximum number of records that wait for a slow reader of the stream.
	streamBuffer = 4096

	// dropsPause is the time between two reports of dropped records.
	dropsPause = time.Second

	// HeartbeatPause is the time after which a stream without records sends an empty line.
	HeartbeatPause = 10 * time.Second

	// writeTimeout is the time after which a reader that reads nothing is disconnected.
	writeTimeout = 30 * time.Second
)

// ServeHTTP streams live records as lines of JSON until the client closes the connection. ParseFilter reads the query.
// A line of the stream has the number of dropped records.
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
	subscription, err := h.Subscribe(filter, streamBuffer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer subscription.Close()
	w.Header().Set("Content-Type", ContentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	responseStream := stream{Subscription: subscription, controller: http.NewResponseController(w), response: w}
	responseStream.run(r)
}

type stream struct {
	*Subscription
	response   http.ResponseWriter
	controller *http.ResponseController
	lines      bytes.Buffer
}

func (s *stream) run(r *http.Request) {
	dropsTicker := time.NewTicker(dropsPause)
	defer dropsTicker.Stop()
	heartbeat := time.NewTicker(HeartbeatPause)
	defer heartbeat.Stop()
	reportedDrops := uint64(0)
	for s.write() {
		select {
		case <-r.Context().Done():
			return
		case record := <-s.records:
			appendLine(&s.lines, record)
			for s.lines.Len() < flushBytes && len(s.records) > 0 {
				appendLine(&s.lines, <-s.records)
			}
			heartbeat.Reset(HeartbeatPause)
		case now := <-dropsTicker.C:
			if drops := s.Dropped(); drops > reportedDrops {
				appendLine(&s.lines, Drops{now.UTC(), drops - reportedDrops, "reader too slow"})
				reportedDrops = drops
			}
		case <-heartbeat.C:
			s.lines.WriteByte('\n')
		}
	}
}

// write sends the lines to the client. It reports false if the client has closed the connection.
func (s *stream) write() bool {
	_ = s.controller.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := s.response.Write(s.lines.Bytes())
	s.lines.Reset()
	return err == nil && s.controller.Flush() == nil
}
