// Package file is the source of limits files. It polls them: an edit, a rename, a new
// target of a symbolic link and a remounted directory all look alike, on every file
// system.
//
// Terms:
//
//   - place: the file or the directories that the settings name;
//   - fingerprint: the metadata of all files at a place, hashed;
//   - settled: two fingerprints in a row are equal, so that nobody is writing.
package file

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
)

// Source follows the limits files at a place.
type Source struct {
	place    Place
	interval time.Duration
	requests chan struct{}
}

const (
	// settlePause is the time between two fingerprints when files are read on request.
	settlePause = 200 * time.Millisecond

	// startTries bounds the fingerprints of the first read.
	startTries = 25

	// restlessTries is the number of fingerprints in a row, each different, after
	// which Run reports that the files never settle.
	restlessTries = 10

	// fullReadEvery is the number of fingerprints after which Run reads the files even
	// if the fingerprint is the same. A read error may be over, and some file systems
	// hide changes.
	fullReadEvery = 30
)

// New returns a Source that looks at place once per interval; 1 s if interval is 0.
func New(place Place, interval time.Duration) *Source {
	if interval <= 0 {
		interval = time.Second
	}
	return &Source{place: place, interval: interval, requests: make(chan struct{}, 1)}
}

// Reload makes Run read the files and apply them even if they are unchanged. It can be
// called at any time.
func (s *Source) Reload() {
	select {
	case s.requests <- struct{}{}:
	default: // one is pending
	}
}

// Snapshot is everything at a place at one time.
type Snapshot struct {
	Files   []descriptors.File
	Skipped []Skipped

	// Err is why the files can't be read. Files is empty then.
	Err error

	// Requested reports that Reload asked for the snapshot.
	Requested bool

	Digests Digests // of Files
}

// Digests maps the names of files to hashes of their contents.
type Digests map[string][sha256.Size]byte

// Changed returns the names of the files that differ between old and d, sorted. Added
// and removed files count.
func (d Digests) Changed(old Digests) (names []string) {
	for name, digest := range d {
		if before, known := old[name]; !known || before != digest {
			names = append(names, name)
		}
	}
	for name := range old {
		if _, remains := d[name]; !remains {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// snapshot reads the files.
func (s *Source) snapshot() *Snapshot {
	n := &Snapshot{Digests: Digests{}}
	n.Files, n.Skipped, n.Err = s.place.Read()
	for _, f := range n.Files {
		n.Digests[f.Name] = sha256.Sum256(f.Data)
	}
	return n
}

// equal reports whether n and o have the same files and skipped entries, or the same
// error.
func (n *Snapshot) equal(o *Snapshot) bool {
	if n.Err != nil || o.Err != nil {
		return n.Err != nil && o.Err != nil && n.Err.Error() == o.Err.Error()
	}
	return maps.Equal(n.Digests, o.Digests) && slices.Equal(n.Skipped, o.Skipped)
}

// Run calls apply with the files as they are now, and again after each change, until ctx
// is done. It reads files only while they are settled, so that a file that is being
// written is not applied. Only the first snapshot is taken after startTries in any case.
func (s *Source) Run(ctx context.Context, apply func(*Snapshot)) error {
	var (
		applied   = &Snapshot{}
		lastPrint fingerprint // of the last look
		readPrint fingerprint // of the files in the last snapshot
		looks     int         // since the last snapshot
		tries     int         // looks in a row that found unsettled files
	)
	for started, requested := false, false; ; looks++ {
		current := s.place.fingerprint()
		giveUp := !started && tries == startTries
		switch {
		case current != lastPrint && !giveUp:
			lastPrint = current
			if tries++; started && tries == restlessTries {
				applied = &Snapshot{Err: fmt.Errorf("%s: the files keep changing; they are read when they rest for %s", s.place.Path(), s.interval)}
				apply(applied)
			}
		case !started || requested || current != readPrint || looks >= fullReadEvery:
			n := s.snapshot()
			if lastPrint = s.place.fingerprint(); lastPrint != current && !giveUp {
				tries++
				break
			}
			readPrint, looks, tries = current, 0, 0
			if n.Requested = requested; requested || !started || !n.equal(applied) {
				apply(n)
				applied = &Snapshot{Skipped: n.Skipped, Err: n.Err, Digests: n.Digests}
			}
			started, requested = true, false
		default:
			tries = 0
		}
		pause := s.interval
		if !started || requested {
			pause = min(pause, settlePause)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-s.requests:
			timer.Stop()
			requested = true
		case <-timer.C:
		}
	}
}
