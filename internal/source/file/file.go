// Package file is the source of limits files. It polls them: an edit, a rename, a new target of a symbolic link and
// a remounted directory all look alike, on every file system.
//
// Terms:
//
// - place: the file or the directories that the settings name;
// - look: taking the fingerprint, a hash of the metadata of all files at a place;
// - settled: two looks in a row found the same, so nobody is writing. The first look at the start counts as two, so
// that the start does not wait.
package file

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/heap"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/source"
)

// Options configure a Source.
type Options struct {
	Place Place

	// Interval is the time between two looks at the files; 1 s by default.
	Interval time.Duration

	// Parse says how to parse the files.
	Parse limitsfile.Options

	// Log gets a line for each skipped file. It may be nil.
	Log *slog.Logger
}

// Source is the source of the limits files at a place.
type Source struct {
	options        Options
	reloadRequests chan struct{}

	// Only Run uses the fields below.
	loggedSkipped map[Skipped]bool // entries that the log has
	lists         lists            // of the limits that were parsed last
	applied       bool             // limits are in force
}

var _ source.Source = (*Source)(nil)

const (
	// settlePause is the time between two looks after Reload, and at the start while the files change.
	settlePause = 200 * time.Millisecond

	// startTries bounds the looks before the first read.
	startTries = 25

	// restlessTries is the number of looks in a row with changes, after which Run reports restless files.
	restlessTries = 10

	// readPause is the pause between two parts of a large file, which take about as long to read.
	readPause = time.Millisecond

	// fullReadEvery is the number of looks between full reads, because some file systems hide changes.
	fullReadEvery = 30
)

// New returns a Source. It reads nothing.
func New(o Options) *Source {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Source{options: o, reloadRequests: make(chan struct{}, 1)}
}

// Reload makes Run read and apply the files even if they are unchanged. It can be called at any time.
func (s *Source) Reload() { wait.Signal(s.reloadRequests) }

// Run implements source.Source.
func (s *Source) Run(ctx context.Context, apply func(source.Update) error) error {
	isGood := false // the files of the last snapshot are in force
	return s.poll(ctx, func(n *snapshot) { isGood = s.apply(n, apply) }, func() {
		if isGood {
			_ = apply(source.Update{})
		}
	})
}

// fingerprint returns the fingerprint of the limits files and of their lists.
func (s *Source) fingerprint() fingerprint {
	places := s.options.Place.fingerprint()
	if len(s.lists) == 0 {
		return places
	}
	h := sha256.New()
	h.Write(places[:])
	s.lists.writeStats(h)
	return fingerprint(h.Sum(nil))
}

// poll calls handle with the files as they are now and after each change, and handleSame after a read without a
// change, until ctx is done. It reads settled files only, except that the first read happens after startTries in
// any case.
func (s *Source) poll(ctx context.Context, handle func(*snapshot), handleSame func()) error {
	var (
		lastSnapshot                     = &snapshot{}
		lastFingerprint, readFingerprint fingerprint // of the last look and the last read
		looksSinceRead                   int
		unsettledLooks                   int // in a row
		firstReadDone                    bool
	)
	lastFingerprint = s.fingerprint()
	for reloadRequested := true; ; looksSinceRead++ {
		currentFingerprint := s.fingerprint()
		if currentFingerprint == lastFingerprint {
			unsettledLooks = 0
		} else {
			unsettledLooks++
		}
		lastFingerprint = currentFingerprint
		readDue := reloadRequested || currentFingerprint != readFingerprint || looksSinceRead >= fullReadEvery
		readForced := !firstReadDone && unsettledLooks > startTries
		if readDue && unsettledLooks == 0 || readForced {
			n := s.snapshot()
			lastFingerprint = s.fingerprint()
			if lastFingerprint == currentFingerprint || readForced { // else a file changed during the read
				if reloadRequested || !n.equal(lastSnapshot) {
					handle(n)
					lastSnapshot = &snapshot{skipped: n.skipped, err: n.err, digest: n.digest, lists: s.lists} // no files, to free memory
				} else {
					handleSame()
				}
				readFingerprint, looksSinceRead, unsettledLooks = currentFingerprint, 0, 0
				firstReadDone, reloadRequested = true, false
			}
		} else if firstReadDone && unsettledLooks == restlessTries {
			lastSnapshot = &snapshot{err: fmt.Errorf("%s: the files keep changing; they are read once they stay unchanged for %s", s.options.Place.Path(), s.options.Interval)}
			handle(lastSnapshot)
		}
		pause := s.options.Interval
		if reloadRequested {
			pause = min(pause, settlePause)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.reloadRequests:
			reloadRequested, lastFingerprint = true, fingerprint{} // the next look is the first of two
		case <-time.After(pause):
		}
	}
}

// apply parses and applies the files of n. It reports whether the result is in force.
func (s *Source) apply(n *snapshot, apply func(source.Update) error) bool {
	defer heap.BeginLoad()()
	s.logSkipped(n.skipped)
	if n.err != nil {
		_ = apply(source.Update{Problem: n.err})
		return false
	}
	options := s.options.Parse
	s.lists = lists{}
	options.ReadList = s.lists.read
	if s.applied {
		options.Pause = func() { time.Sleep(readPause) }
	}
	attrs := []slog.Attr{slog.Int("files", len(n.files))}
	limits, err := limitsfile.Parse(n.files, options)
	n.files = nil // the end of the load frees their memory
	err = apply(source.Update{Limits: limits, Problem: err, Attrs: attrs})
	s.applied = s.applied || err == nil
	return err == nil
}

func (s *Source) logSkipped(skipped []Skipped) {
	logged := map[Skipped]bool{}
	for _, k := range skipped {
		if logged[k] = true; !s.loggedSkipped[k] {
			s.options.Log.Warn("file skipped", "path", k.Path, "reason", k.Reason)
		}
	}
	s.loggedSkipped = logged
}

// snapshot is everything at a place at one time.
type snapshot struct {
	files   []limitsfile.File
	skipped []Skipped
	err     error             // why the files can't be read; files is empty then
	digest  [sha256.Size]byte // of files
	lists   lists             // as they are now, of the limits that were parsed last
}

func (s *Source) snapshot() *snapshot {
	n := &snapshot{}
	n.files, n.skipped, n.err = s.options.Place.Read()
	h := sha256.New()
	for _, f := range n.files {
		fmt.Fprintf(h, "%q %d\n", f.Name, len(f.Data))
		h.Write(f.Data)
	}
	h.Sum(n.digest[:0])
	n.lists = lists{}
	for path := range s.lists {
		_, _ = n.lists.read(path)
	}
	return n
}

func (n *snapshot) equal(o *snapshot) bool {
	if n.err != nil || o.err != nil {
		return n.err != nil && o.err != nil && n.err.Error() == o.err.Error()
	}
	return n.digest == o.digest && maps.Equal(n.lists, o.lists) && slices.Equal(n.skipped, o.skipped)
}

// ReadList returns the content of the file of a list, up to one byte more than such a file may have.
func ReadList(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, withoutOperation(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return readFile(path)
}

// Parse parses limits files. Their lists can be in files of their own.
func Parse(files []limitsfile.File, o limitsfile.Options) (*limitsfile.Set, error) {
	o.ReadList = ReadList
	return limitsfile.Parse(files, o)
}

// lists has the digests of the files with lists, or of their errors, by path.
type lists map[string][sha256.Size]byte

// read is ReadList, and adds the digest to l.
func (l lists) read(path string) ([]byte, error) {
	data, err := ReadList(path)
	if err != nil {
		l[path] = sha256.Sum256([]byte(err.Error()))
	} else {
		l[path] = sha256.Sum256(data)
	}
	return data, err
}

func (l lists) writeStats(w io.Writer) {
	for _, path := range slices.Sorted(maps.Keys(l)) {
		if info, err := os.Stat(path); err != nil {
			fmt.Fprintf(w, "%q %v\n", path, err)
		} else {
			writeStats(w, path, info)
		}
	}
}
