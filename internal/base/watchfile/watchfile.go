// Package watchfile reads small files again whenever they change.
package watchfile

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

const maxBytes = 1 << 20 // of a file

// Options are the options of Read. Only Paths and Apply are required.
type Options struct {
	Paths []string // of files that come into force together

	// Content names what the files have, for messages, such as "tokens".
	Content string

	// Apply puts the contents of all files in force, or returns why they are invalid.
	Apply func(contents [][]byte) error

	// Observe is called after each change, with the reason if the files were rejected.
	Observe func(err error)

	// Details returns attributes for the log line of a change.
	Details func() []any

	Interval time.Duration // between two reads; default 1 s

	Log *slog.Logger
}

// Files are files in force. A change is in force within two intervals. If a file is invalid or missing, the last
// valid content of all files stays in force.
type Files struct {
	o       Options
	applied [][]byte
	last    [][]byte // of the last read
	lastErr string   // the error logged last
}

// Read reads the files and puts them in force.
func Read(o Options) (*Files, error) {
	o.Interval = cmp.Or(o.Interval, time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Observe == nil {
		o.Observe = func(error) {}
	}
	if o.Details == nil {
		o.Details = func() []any { return nil }
	}
	f := &Files{o: o}
	contents, err := f.read()
	if err != nil {
		return nil, err
	}
	f.applied, f.last = contents, contents
	return f, o.Apply(contents)
}

// Watch calls Reload at each interval until ctx is done.
func (f *Files) Watch(ctx context.Context) {
	for wait.Sleep(ctx, f.o.Interval) {
		f.Reload()
	}
}

// Reload reads the files. It applies a change that two reads have found, because somebody may be writing.
func (f *Files) Reload() {
	changed, err := f.reload()
	attrs := []any{"file", strings.Join(f.o.Paths, ", ")}
	switch {
	case err != nil && err.Error() != f.lastErr:
		f.lastErr = err.Error()
		f.o.Log.Error(fmt.Sprintf("%s rejected; the last %s stay in force", f.o.Content, f.o.Content), append(attrs, "error", err)...)
		f.o.Observe(err)
	case changed:
		f.lastErr = ""
		f.o.Log.Info(f.o.Content+" reloaded", append(attrs, f.o.Details()...)...)
		f.o.Observe(nil)
	}
}

func (f *Files) reload() (changed bool, err error) {
	contents, err := f.read()
	if err != nil {
		return false, err
	}
	isComplete := equal(contents, f.last)
	f.last = contents
	if !isComplete || equal(contents, f.applied) && f.lastErr == "" {
		return false, nil
	}
	if err := f.o.Apply(contents); err != nil {
		return false, err
	}
	f.applied = contents
	return true, nil
}

func equal(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

func (f *Files) read() (contents [][]byte, err error) {
	for _, path := range f.o.Paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
		if err != nil {
			return nil, err
		}
		if len(data) > maxBytes {
			return nil, fmt.Errorf("%s: want at most %d bytes", path, maxBytes)
		}
		contents = append(contents, data)
	}
	return contents, nil
}
