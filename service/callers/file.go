package callers

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/internal/base/watchfile"
)

// File keeps the bindings of a file in force. A change is in force within two seconds. If the file is invalid, the
// last valid bindings stay in force.
type File struct {
	watched *watchfile.Files
	current atomic.Pointer[Bindings]
}

// Open reads the file and returns an error if it is invalid. observe is called after each change, with the reason
// if the file was rejected. observe and log can be nil.
func Open(path string, observe func(err error), log *slog.Logger) (*File, error) {
	f := new(File)
	apply := func(contents [][]byte) error {
		b, err := Parse(path, contents[0])
		if err == nil {
			f.current.Store(&b)
		}
		return err
	}
	var err error
	f.watched, err = watchfile.Read(watchfile.Options{
		Paths: []string{path}, Content: "callers", Apply: apply, Observe: observe, MaxBytes: MaxFileBytes, Log: log,
	})
	return f, err
}

// Check returns an error if a file is invalid.
func Check(path string) error {
	_, err := Open(path, nil, nil)
	return err
}

// Bindings returns the bindings in force.
func (f *File) Bindings() Bindings { return *f.current.Load() }

// Run applies changes of the file until ctx is done.
func (f *File) Run(ctx context.Context) { f.watched.Watch(ctx) }
