// Package file is the source of limits files. It polls the files, because polling finds each kind of change on every
// file system: an edit, a rename, a new target of a symbolic link or a remounted directory.
//
// Terms:
//
// - place: the file or the directories that the settings name;
// - fingerprint: a hash of the metadata of all files at a place;
// - check: one computation of the fingerprint;
// - stable: files are stable if two checks in a row found the same fingerprint, so nobody is writing. The first check
// at the start counts as two checks, so the start does not wait.
package file

import (
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

	// Interval is the time between two checks of the files.
	Interval time.Duration

	// Parse are the options for parsing the files.
	Parse limitsfile.Options

	// Log gets a line for each skipped file.
	Log *slog.Logger
}

// Source is the source of the limits files at a place.
type Source struct {
	options        Options
	reloadRequests chan struct{}

	// Only Run uses the fields below.
	loggedEntries map[SkippedEntry]bool // the skipped entries that are in the log
	lists         listDigests           // the lists that the last parsed limits name
	isApplied     bool                  // limits are in force
}

var _ source.Source = (*Source)(nil)

const (
	// stablePause is the time between two checks after Reload, and at the start while the files change.
	stablePause = 200 * time.Millisecond

	// maxStartChecks bounds the checks before the first read.
	maxStartChecks = 25

	// If maxChangedChecks checks in a row find a change, Run reports a problem.
	maxChangedChecks = 10

	// parsePause is the pause between two parts of a large file. The parser also needs about 1 ms for a part.
	parsePause = time.Millisecond

	// checksPerFullRead is the number of checks between two full reads. A full read finds changes without new metadata.
	checksPerFullRead = 30
)

// New returns a Source. It reads nothing.
func New(o Options) *Source {
	return &Source{options: o, reloadRequests: make(chan struct{}, 1)}
}

// Reload makes Run read and apply the files even if they are unchanged. The caller may call Reload at any time.
func (s *Source) Reload() { wait.Signal(s.reloadRequests) }

// Run implements source.Source.
func (s *Source) Run(ctx context.Context, apply func(source.Update) error) error {
	isInForce := false // the files of the last snapshot are in force
	return s.poll(ctx, func(newSnapshot *snapshot) { isInForce = s.apply(newSnapshot, apply) }, func() {
		if isInForce {
			_ = apply(source.Update{})
		}
	})
}

func (s *Source) fingerprint() fingerprint {
	placeFingerprint := s.options.Place.fingerprint()
	if len(s.lists) == 0 {
		return placeFingerprint
	}
	h := sha256.New()
	h.Write(placeFingerprint[:])
	s.lists.writeStats(h)
	return fingerprint(h.Sum(nil))
}

// poll reads the files at once and after each change, until ctx is done. It calls handle with the first snapshot and each
// changed snapshot, and handleUnchanged after a read without a change. poll reads only stable files, but after
// maxStartChecks it makes the first read even if the files are not stable.
func (s *Source) poll(ctx context.Context, handle func(*snapshot), handleUnchanged func()) error {
	var (
		lastSnapshot    = &snapshot{}
		lastFingerprint fingerprint // the fingerprint that the last check found
		readFingerprint fingerprint // the fingerprint at the last read
		checksSinceRead int
		changedChecks   int // the number of checks in a row that found a change
		isFirstReadDone bool
	)
	lastFingerprint = s.fingerprint()
	for isReloadRequested := true; ; checksSinceRead++ {
		currentFingerprint := s.fingerprint()
		if currentFingerprint == lastFingerprint {
			changedChecks = 0
		} else {
			changedChecks++
		}
		lastFingerprint = currentFingerprint
		isReadDue := isReloadRequested || currentFingerprint != readFingerprint || checksSinceRead >= checksPerFullRead
		mustRead := !isFirstReadDone && changedChecks > maxStartChecks
		if isReadDue && changedChecks == 0 || mustRead {
			newSnapshot := s.takeSnapshot()
			lastFingerprint = s.fingerprint()
			if lastFingerprint == currentFingerprint || mustRead { // otherwise a file changed during the read
				if isReloadRequested || !newSnapshot.equal(lastSnapshot) {
					handle(newSnapshot)
					lastSnapshot = &snapshot{skippedEntries: newSnapshot.skippedEntries, err: newSnapshot.err, digest: newSnapshot.digest, lists: s.lists} // without files, to free memory
				} else {
					handleUnchanged()
				}
				readFingerprint, checksSinceRead, changedChecks = currentFingerprint, 0, 0
				isFirstReadDone, isReloadRequested = true, false
			}
		} else if isFirstReadDone && changedChecks == maxChangedChecks {
			lastSnapshot = &snapshot{err: fmt.Errorf("%s: the files keep changing; rls reads the files when they have not changed for %s", s.options.Place.Path(), s.options.Interval)}
			handle(lastSnapshot)
		}
		pause := s.options.Interval
		if isReloadRequested {
			pause = min(pause, stablePause)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.reloadRequests:
			isReloadRequested, lastFingerprint = true, fingerprint{} // the next two checks find out whether the files are stable
		case <-time.After(pause):
		}
	}
}

func (s *Source) apply(newSnapshot *snapshot, apply func(source.Update) error) (isInForce bool) {
	defer heap.BeginLoad()()
	s.logSkippedEntries(newSnapshot.skippedEntries)
	if newSnapshot.err != nil {
		_ = apply(source.Update{Problem: newSnapshot.err})
		return false
	}
	options := s.options.Parse
	s.lists = listDigests{}
	options.ReadList = s.lists.read
	if s.isApplied {
		options.Pause = func() { time.Sleep(parsePause) }
	}
	attrs := []slog.Attr{slog.Int("files", len(newSnapshot.files))}
	limits, err := limitsfile.Parse(newSnapshot.files, options)
	newSnapshot.files = nil // so that the end of the load frees the memory of the files
	err = apply(source.Update{Limits: limits, Problem: err, Attrs: attrs})
	s.isApplied = s.isApplied || err == nil
	return err == nil
}

func (s *Source) logSkippedEntries(entries []SkippedEntry) {
	skippedNow := map[SkippedEntry]bool{}
	for _, entry := range entries {
		if skippedNow[entry] = true; !s.loggedEntries[entry] {
			s.options.Log.Warn("file skipped", "path", entry.Path, "reason", entry.Reason)
		}
	}
	s.loggedEntries = skippedNow
}

type snapshot struct {
	files          []limitsfile.File
	skippedEntries []SkippedEntry
	err            error             // the error of a file that can't be read; files is then empty
	digest         [sha256.Size]byte // the digest of files
	lists          listDigests       // the digests of the lists that the last parsed limits name
}

func (s *Source) takeSnapshot() *snapshot {
	newSnapshot := &snapshot{}
	newSnapshot.files, newSnapshot.skippedEntries, newSnapshot.err = s.options.Place.Read()
	h := sha256.New()
	for _, f := range newSnapshot.files {
		fmt.Fprintf(h, "%q %d\n", f.Name, len(f.Data))
		h.Write(f.Data)
	}
	h.Sum(newSnapshot.digest[:0])
	newSnapshot.lists = listDigests{}
	for path := range s.lists {
		_, _ = newSnapshot.lists.read(path)
	}
	return newSnapshot
}

func (s *snapshot) equal(other *snapshot) bool {
	if s.err != nil || other.err != nil {
		return s.err != nil && other.err != nil && s.err.Error() == other.err.Error()
	}
	return s.digest == other.digest && maps.Equal(s.lists, other.lists) && slices.Equal(s.skippedEntries, other.skippedEntries)
}

// ReadList returns the content of a file with a list. If the file is too large, the result has one byte more than
// allowed, so that the parser can reject the list.
func ReadList(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, pathError(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return readFile(path)
}

// Parse parses limits files. The files may name other files with lists.
func Parse(files []limitsfile.File, o limitsfile.Options) (*limitsfile.Set, error) {
	o.ReadList = ReadList
	return limitsfile.Parse(files, o)
}

// listDigests has the digests of files with lists. The key is the path. An unreadable file has the digest of its error.
type listDigests map[string][sha256.Size]byte

func (l listDigests) read(path string) ([]byte, error) {
	data, err := ReadList(path)
	if err != nil {
		l[path] = sha256.Sum256([]byte(err.Error()))
	} else {
		l[path] = sha256.Sum256(data)
	}
	return data, err
}

func (l listDigests) writeStats(w io.Writer) {
	for _, path := range slices.Sorted(maps.Keys(l)) {
		if info, err := os.Stat(path); err != nil {
			fmt.Fprintf(w, "%q %v\n", path, err)
		} else {
			writeStats(w, path, info)
		}
	}
}
