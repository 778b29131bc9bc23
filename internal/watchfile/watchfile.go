// Package watchfile reads a small file again whenever it changes.
package watchfile

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// Options are the options of Read. Only Path and Apply are required.
type Options struct {
	Path string

	// Content names what the file has, for messages, such as "tokens".
	Content string

	// Apply puts the content in force, or returns why it is invalid. One goroutine at a time
	// calls it.
	Apply func(data []byte) error

	MaxBytes int64         // default 1 MiB
	Interval time.Duration // between two reads; default 5 s

	Log *slog.Logger
}

// File is a file that is in force.
type File struct {
	o       Options
	data    []byte
	lastErr string
}

// Read reads a file and puts it in force.
func Read(o Options) (*File, error) {
	o.MaxBytes = cmp.Or(o.MaxBytes, 1<<20)
	o.Interval = cmp.Or(o.Interval, 5*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	f := &File{o: o}
	_, err := f.load()
	return f, err
}

// Watch reads the file at each interval until ctx is done. If the file is invalid or missing,
// the former content stays in force.
func (f *File) Watch(ctx context.Context) {
	for wait.Sleep(ctx, f.o.Interval) {
		changed, err := f.load()
		switch {
		case err != nil && err.Error() != f.lastErr:
			f.lastErr = err.Error()
			f.o.Log.Error(f.o.Content+" rejected; the former ones stay in force", "error", err)
		case err == nil:
			f.lastErr = ""
			if changed {
				f.o.Log.Info(f.o.Content+" reloaded", "file", f.o.Path)
			}
		}
	}
}

// load puts the file in force if it has changed.
func (f *File) load() (changed bool, err error) {
	data, err := f.read()
	if err != nil {
		return false, err
	}
	if f.data != nil && bytes.Equal(data, f.data) {
		return false, nil
	}
	if err := f.o.Apply(data); err != nil {
		return false, fmt.Errorf("%s: %w", f.o.Path, err)
	}
	f.data = data
	return true, nil
}

func (f *File) read() ([]byte, error) {
	file, err := os.Open(f.o.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, f.o.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > f.o.MaxBytes {
		return nil, fmt.Errorf("%s: want at most %d bytes", f.o.Path, f.o.MaxBytes)
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}
