package overrides

import (
	"context"
	"encoding/json"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// limitsScript adds a version of limits to a list, unless another replica has added the version. If Redis has lost the list,
// limitsScript first adds the previous version, because the history shows the differences between versions.
//
// KEYS: the list. ARGV: the tag; the version as JSON; the maximum length of the list; the previous version as JSON, or "".
var limitsScript = goredis.NewScript(`
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest and string.find(newest, '"tag":"' .. ARGV[1] .. '"', 1, true) == 2 then return 0 end
if not newest and ARGV[4] ~= '' then redis.call('LPUSH', KEYS[1], ARGV[4]) end
redis.call('LPUSH', KEYS[1], ARGV[2])
redis.call('LTRIM', KEYS[1], 0, ARGV[3] - 1)
return 1
`)

const maxLimitsVersionBytes = 256 << 10 // Redis keeps no limits of a larger version, but its tag, time and source

// AddLimitsVersion stores v in Redis, unless v is the version that was added last. previous is the version before v, or nil.
func (s *Store) AddLimitsVersion(ctx context.Context, v changes.LimitsVersion, previous *changes.LimitsVersion) error {
	tag, text := encodeVersion(v)
	previousText := ""
	if previous != nil {
		_, previousText = encodeVersion(*previous)
	}
	err := limitsScript.Run(ctx, s.options.Client, []string{s.limitsList}, tag, text, changes.MaxLimitsVersions, previousText).Err()
	if err != nil {
		return s.wrapError("keep the version of the limits", err)
	}
	return nil
}

func encodeVersion(v changes.LimitsVersion) (tag, text string) {
	limits, _ := json.Marshal(v.Limits) // Marshal of texts returns no error
	v.Tag = changes.Tag(v.Source + string(limits))
	if len(limits) > maxLimitsVersionBytes {
		v.Limits = nil
	}
	encodedVersion, _ := json.Marshal(v)
	return v.Tag, string(encodedVersion)
}

// LimitsVersions returns the last versions of limits, the newest first.
func (s *Store) LimitsVersions(ctx context.Context) (versions []changes.LimitsVersion, _ error) {
	texts, err := s.options.Client.LRange(ctx, s.limitsList, 0, changes.MaxLimitsVersions-1).Result()
	if err != nil {
		return nil, s.wrapError("read the versions of the limits", err)
	}
	for _, text := range texts {
		var v changes.LimitsVersion
		if json.Unmarshal([]byte(text), &v) == nil {
			versions = append(versions, v)
		}
	}
	return versions, nil
}
