package main

import (
	"cmp"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/mod/module"
)

// version, commit and date are set by the build (deploy/scripts/ldflags).
var version, commit, date string

// build says which source the program is built from.
type build struct {
	Version string // of the last tag, or that of the module
	Commit  string // the hash
	Date    string // of the commit, as RFC 3339 in UTC
}

const unknownBuild = "unknown"

var thisBuild = sync.OnceValue(func() build {
	info, _ := debug.ReadBuildInfo()
	return newBuild(build{Version: version, Commit: commit, Date: date}, info)
})

// newBuild completes the values of the linker with what the Go command records. In a clone,
// go build records the commit. go install of a version without a tag records a pseudo-version, which
// contains the time and the start of the hash. info may be nil.
func newBuild(linked build, info *debug.BuildInfo) build {
	var recorded build
	if info != nil {
		recorded.Version = info.Main.Version
		if module.IsPseudoVersion(recorded.Version) {
			recorded.Commit, _ = module.PseudoVersionRev(recorded.Version)
			if t, err := module.PseudoVersionTime(recorded.Version); err == nil {
				recorded.Date = t.UTC().Format(time.RFC3339)
			}
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				recorded.Commit = s.Value
			case "vcs.time":
				recorded.Date = s.Value
			}
		}
	}
	return build{
		Version: cmp.Or(linked.Version, recorded.Version, unknownBuild),
		Commit:  cmp.Or(linked.Commit, recorded.Commit, unknownBuild),
		Date:    cmp.Or(linked.Date, recorded.Date, unknownBuild),
	}
}
