package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/seed-81f232ab/rls/descriptors"
)

// WatchOptions say how to follow changes. Zero values stand for the defaults.
type WatchOptions struct {
	// Quiet is how long nothing must change before what was read counts; 200 ms by
	// default. It makes one change of a burst, and keeps files that are being
	// written out of force.
	Quiet time.Duration

	// Poll is how often to look without being told of a change, for file systems
	// that tell of none (NFS, some container mounts); 30 s by default.
	Poll time.Duration

	// NoEvents only polls.
	NoEvents bool

	// OnBlind, if given, is told once why changes are seen by polling only.
	OnBlind func(error)

	// OnRestless, if given, is told when what is there has changed for so long
	// without rest that changes wait; then again only after a rest.
	OnRestless func(since time.Duration)
}

// In spans of Quiet: how long First waits for a rest, and Run before it tells that
// there is none.
const (
	patience = 25
	restless = 50
)

// Digests are of the files' texts, by name.
type Digests map[string][sha256.Size]byte

// Reading is what was at the place at one time.
type Reading struct {
	Files   []descriptors.File
	Skipped []Skipped

	// Err tells that the files can't be had, as by Files. There are none then.
	Err error

	// Asked tells that it is told as Reload asked for it.
	Asked bool

	Digests Digests // of Files

	spots spots
}

// Watcher follows the limits files at a place through all the ways in which they
// are changed: edited, replaced, added, removed, or by another target of a
// symbolic link anywhere on the way to them, as Kubernetes mounts ConfigMaps.
type Watcher struct {
	place   Runtime
	options Options
	watch   WatchOptions
	asked   chan struct{}

	told   Reading
	events *fsnotify.Watcher // nil if there are none
	spots  spots             // where events count
	blind  bool              // OnBlind was told
}

// NewWatcher makes a Watcher of what r names.
func NewWatcher(r Runtime, o Options, w WatchOptions) *Watcher {
	if w.Quiet <= 0 {
		w.Quiet = 200 * time.Millisecond
	}
	if w.Poll <= 0 {
		w.Poll = 30 * time.Second
	}
	return &Watcher{place: r, options: o, watch: w, asked: make(chan struct{}, 1)}
}

// First reads the files as they are now, once they are settled; if they aren't
// soon, as they are then. Run tells what differs from that. It must not be called
// once Run is.
func (w *Watcher) First() Reading {
	defer w.close()
	ctx, cancel := context.WithTimeout(context.Background(), patience*w.watch.Quiet)
	defer cancel()
	r, _ := w.settled(ctx)
	w.tell(r)
	return r
}

// Reload makes Run read the files and tell them even if nothing has changed.
func (w *Watcher) Reload() {
	select {
	case w.asked <- struct{}{}:
	default: // one is due already
	}
}

// Run calls changed, in this goroutine, with each Reading that differs from the
// one before, once it is settled. It returns when ctx is done.
func (w *Watcher) Run(ctx context.Context, changed func(Reading)) {
	defer w.close()
	for asked := false; ; {
		r, ok := w.settled(ctx)
		if !ok {
			return
		}
		if asked || !r.same(&w.told) {
			w.tell(r)
			r.Asked = asked
			changed(r)
		}
		if asked, ok = w.wait(ctx); !ok {
			return
		}
	}
}

func (w *Watcher) read() Reading {
	var r Reading
	rd := reader{Options: w.options}
	rd.runtime(w.place)
	r.Files, r.Skipped, r.Err = rd.done(w.place.Path())
	r.spots = rd.spots
	r.Digests = make(Digests, len(r.Files))
	for _, f := range r.Files {
		r.Digests[f.Name] = sha256.Sum256(f.Data)
	}
	return r
}

// same tells whether the files, or why there are none, are the same, and so is what
// was left out.
func (r *Reading) same(o *Reading) bool {
	if r.Err != nil || o.Err != nil {
		return r.Err != nil && o.Err != nil && r.Err.Error() == o.Err.Error()
	}
	return maps.Equal(r.Digests, o.Digests) && slices.Equal(r.Skipped, o.Skipped)
}

// Changed are the names of the files that are not as before: other text, new, or
// gone. Sorted.
func (d Digests) Changed(before Digests) (names []string) {
	for name, digest := range d {
		if old, known := before[name]; !known || old != digest {
			names = append(names, name)
		}
	}
	for name := range before {
		if _, still := d[name]; !still {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// tell makes r the reading told last.
func (w *Watcher) tell(r Reading) {
	w.told = Reading{Skipped: r.Skipped, Err: r.Err, Digests: r.Digests}
}

// settled reads until two readings agree with nothing happening between them;
// false, with the last reading, if ctx ends before that.
func (w *Watcher) settled(ctx context.Context) (Reading, bool) {
	began, told := time.Now(), w.watch.OnRestless == nil
	for r := w.read(); ; {
		w.listen(r.spots)
		if !w.quiet(ctx) {
			return r, false
		}
		again := w.read()
		if again.same(&r) && again.spots.equal(r.spots) {
			return again, true
		}
		r = again
		if since := time.Since(began); !told && since > restless*w.watch.Quiet {
			told = true
			w.watch.OnRestless(since)
		}
	}
}

// quiet returns once nothing has happened for that long; at the latest after ten
// times as long, as what happens need not concern the files. False if ctx ends.
func (w *Watcher) quiet(ctx context.Context) bool {
	end := time.NewTimer(10 * w.watch.Quiet)
	defer end.Stop()
	quiet := time.NewTimer(w.watch.Quiet)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-end.C:
			return true
		case <-quiet.C:
			return true
		case e := <-w.happening():
			if w.spots.has(e.Name) {
				quiet.Reset(w.watch.Quiet)
			}
		case <-w.losses():
			quiet.Reset(w.watch.Quiet)
		}
	}
}

// wait returns when the files may have changed, or a reload was asked for. ok is
// false if ctx ends.
func (w *Watcher) wait(ctx context.Context) (asked, ok bool) {
	poll := time.NewTimer(w.watch.Poll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, false
		case <-w.asked:
			return true, true
		case <-poll.C:
			return false, true
		case <-w.losses():
			return false, true
		case e := <-w.happening():
			if w.spots.has(e.Name) {
				return false, true
			}
		}
	}
}

// listen asks for events at s. The old watches go, as they may be on directories
// that others have taken the names of.
func (w *Watcher) listen(s spots) {
	w.close()
	if w.watch.NoEvents {
		return
	}
	events, err := fsnotify.NewWatcher()
	if err != nil {
		w.tellBlind(err)
		return
	}
	w.events, w.spots = events, s
	for dir := range s {
		err := events.Add(dir)
		switch {
		case err == nil, s[dir] != nil: // on the way, not all can be watched
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission): // the reading tells
		default:
			w.tellBlind(err)
		}
	}
}

func (w *Watcher) tellBlind(err error) {
	if !w.blind && w.watch.OnBlind != nil {
		w.watch.OnBlind(err)
	}
	w.blind = true
}

// happening is where events come from, losses where it is told that some are lost;
// nil, which never says anything, if there are none.
func (w *Watcher) happening() chan fsnotify.Event {
	if w.events == nil {
		return nil
	}
	return w.events.Events
}

func (w *Watcher) losses() chan error {
	if w.events == nil {
		return nil
	}
	return w.events.Errors
}

func (w *Watcher) close() {
	if w.events != nil {
		_ = w.events.Close()
		w.events = nil
	}
}
