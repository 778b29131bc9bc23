package decisionlog

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// ContentType is the content type of the stream.
const ContentType = "application/x-ndjson"

const (
	// streamBuffer is the maximum number of records that wait for a slow reader of the stream.
	streamBuffer = 4096

	// perSecondParam is the parameter of the query with the maximum of records per second.
	perSecondParam = "per_second"

	// dropsPause is the time between two reports of dropped records. It must be a second, because at
	// each report the stream starts again to count records for perSecondParam.
	dropsPause = time.Second

	// HeartbeatPause is the time after which a stream without records sends an empty line.
	HeartbeatPause = 10 * time.Second

	// writeTimeout is the time after which a reader that reads nothing is disconnected.
	writeTimeout = 30 * time.Second
)

// ServeHTTP streams live records as lines of JSON until the client closes the connection. ParseFilter reads the query.
// With per_second=N in the query, the stream sends at most N records per second. A line of the stream has the number of
// dropped records.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "decisions: got method "+r.Method+", want GET", http.StatusMethodNotAllowed)
		return
	}
	query := r.URL.Query()
	perSecond, err := parsePerSecond(query.Get(perSecondParam))
	query.Del(perSecondParam)
	filter, filterErr := ParseFilter(query)
	if err = cmp.Or(err, filterErr); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// With a small buffer, records don't wait long, so a stream with perSecond sends recent records.
	subscription, err := h.Subscribe(filter, cmp.Or(perSecond, streamBuffer))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer subscription.Close()
	w.Header().Set("Content-Type", ContentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	responseStream := stream{Subscription: subscription, controller: http.NewResponseController(w), response: w, perSecond: perSecond}
	responseStream.run(r)
}

// parsePerSecond parses the value of perSecondParam. It returns 0 for an empty text, which means no maximum.
func parsePerSecond(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > streamBuffer {
		return 0, fmt.Errorf("%s: got %q, want a number from 1 to %d", perSecondParam, text, streamBuffer)
	}
	return n, nil
}

type stream struct {
	*Subscription
	response   http.ResponseWriter
	controller *http.ResponseController
	lines      bytes.Buffer
	perSecond  int // the maximum of records per second; 0 means no maximum
}

func (s *stream) run(r *http.Request) {
	dropsTicker := time.NewTicker(dropsPause)
	defer dropsTicker.Stop()
	heartbeat := time.NewTicker(HeartbeatPause)
	defer heartbeat.Stop()
	reason := "reader too slow"
	if s.perSecond > 0 {
		reason = fmt.Sprintf("more than %d per second", s.perSecond)
	}
	reportedDrops := uint64(0)
	sentRecords := 0 // the records since the last tick of dropsTicker
	for s.write() {
		records := s.Records
		if s.perSecond > 0 && sentRecords >= s.perSecond {
			records = nil // a nil channel sends nothing, so the stream waits for the next tick
		}
		select {
		case <-r.Context().Done():
			return
		case record := <-records:
			appendLine(&s.lines, record)
			for sentRecords++; s.lines.Len() < flushBytes && len(s.Records) > 0 && (s.perSecond == 0 || sentRecords < s.perSecond); sentRecords++ {
				appendLine(&s.lines, <-s.Records)
			}
			heartbeat.Reset(HeartbeatPause)
		case now := <-dropsTicker.C:
			sentRecords = 0
			if drops := s.dropCount.Load(); drops > reportedDrops {
				appendLine(&s.lines, Drops{now.UTC(), drops - reportedDrops, reason})
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
