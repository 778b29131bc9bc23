package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// watchInterval is the time between two looks at the watched files.
const watchInterval = 300 * time.Millisecond

// watchFiles runs the tests now and after each change of a file, until ctx ends.
func (o *testOptions) watchFiles(ctx context.Context, paths []string) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	watched, last := paths, ""
	for {
		if state := filesState(watched); state != last {
			read, err := o.run(ctx, paths)
			var code exitCode
			if err != nil && !errors.As(err, &code) && ctx.Err() == nil {
				return err
			}
			if !slices.Equal(read, watched) {
				watched, state = read, filesState(read)
			}
			last = state
			fmt.Fprintf(o.errOut, "%s: waiting for changes\n", time.Now().Format(time.TimeOnly))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// filesState returns a text that changes with the names, sizes and times of all files at or
// below paths.
func filesState(paths []string) string {
	var state strings.Builder
	for _, path := range paths {
		_ = filepath.WalkDir(path, func(name string, _ fs.DirEntry, err error) error {
			info, statErr := os.Stat(name) // of the target of a link
			if err == nil && statErr == nil {
				fmt.Fprintf(&state, "%s %d %d\n", name, info.Size(), info.ModTime().UnixNano())
			} else {
				fmt.Fprintf(&state, "%s is unreadable\n", name)
			}
			return nil
		})
	}
	return state.String()
}
