package source

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// spots are the places in the file system on which a reading depends: names in
// directories. Directories are known by their real paths; nil stands for all
// names in one, or for a file itself.
type spots map[string]map[string]bool

// maxLinks is how many symbolic links lead on, as in Linux.
const maxLinks = 40

// way adds each name that is looked up on the way to path, so that it is seen when
// any directory or symbolic link on it is replaced.
func (s *spots) way(path string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return
	}
	at, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0 && links < maxLinks; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		s.name(at, name)
		next := filepath.Join(at, name)
		if target, err := os.Readlink(next); err == nil {
			links++
			rest = append(strings.Split(target, "/"), rest...)
			if filepath.IsAbs(target) {
				at = "/"
			}
			continue
		}
		if _, err := os.Lstat(next); err != nil {
			return
		}
		at = next
	}
}

func (s *spots) name(dir, name string) {
	if *s == nil {
		*s = spots{}
	}
	names, known := (*s)[dir]
	switch {
	case !known:
		(*s)[dir] = map[string]bool{name: true}
	case names != nil:
		names[name] = true
	}
}

// whole adds all names in a directory, or a file itself: mounted on its own, it can
// be changed without anything happening in its directory.
func (s *spots) whole(path string) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return
	}
	if path, err = filepath.Abs(path); err != nil {
		return
	}
	if *s == nil {
		*s = spots{}
	}
	(*s)[path] = nil
}

// has tells whether a change of path is a change at one of s.
func (s spots) has(path string) bool {
	if _, itself := s[path]; itself {
		return true
	}
	names, known := s[filepath.Dir(path)]
	return known && (names == nil || names[filepath.Base(path)])
}

func (s spots) equal(o spots) bool {
	return maps.EqualFunc(s, o, func(a, b map[string]bool) bool {
		return (a == nil) == (b == nil) && maps.Equal(a, b)
	})
}
