package overrides

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// listName returns the name of a list of overrides, such as the history. In a Cluster, the list is on the same node as
// the hash that has the overrides.
func listName(prefix, list string) string {
	name, hash := prefix+"rls:overrides:"+list, prefix+"rls:overrides"
	if start := strings.IndexByte(prefix, '{'); start >= 0 && strings.IndexByte(prefix[start:], '}') > 1 {
		return name // the braces in the prefix choose the node
	}
	return name + "{" + hash + "}"
}

// changeScript makes a change if all conditions of the change hold. It adds the change to the history, notifies all
// replicas and returns the old values. If Redis forbids PUBLISH, the other replicas find the change by full reads. If the
// client repeats the call, because it got no reply, the script changes nothing and returns the old values again.
//
// KEYS: the hash, the history. ARGV: channel; the maximum length of the history; the start of the entry of the history, as
// JSON with an id of its own (the script adds the version and the writes); then five arguments for each write: the field;
// "yes" if the field must exist, "no" if it must not exist, or ""; the tag that the old value must have, or ""; the
// operation (set or delete); the new value.
//
// The tag of a value is the first 16 digits of its SHA-1, as in changes.Tag.
//
// Reply: "conflict", a field and its value; or "ok", the version, the error of PUBLISH or "", and the old values.
var changeScript = goredis.NewScript(`
local hash, history = KEYS[1], KEYS[2]
local newest = redis.call('LINDEX', history, 0)
if newest and string.sub(newest, 1, #ARGV[3]) == ARGV[3] then
  local entry = cjson.decode(newest)
  local reply = {'ok', entry.version, ''}
  for i, write in ipairs(entry.changes) do reply[i + 3] = write.old or false end
  return reply
end
local old = {}
for i = 4, #ARGV, 5 do
  local field, exists, tag = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local value = redis.call('HGET', hash, field)
  local holds = (exists ~= 'yes' or value) and (exists ~= 'no' or not value)
    and (tag == '' or value and string.sub(redis.sha1hex(value), 1, 16) == tag)
  if not holds then
    return {'conflict', field, value}
  end
  old[#old + 1] = value
end
local version = tonumber(redis.call('HGET', hash, '|version') or '') or 0
if newest then
  local ok, entry = pcall(cjson.decode, newest)
  if ok and type(entry) == 'table' then version = math.max(version, tonumber(entry.version) or 0) end
end
version = version + 1
redis.call('HSET', hash, '|version', string.format('%d', version))
local write_texts = {}
local n = 0
for i = 4, #ARGV, 5 do
  local field, operation, value = ARGV[i], ARGV[i + 3], ARGV[i + 4]
  n = n + 1
  local text = '{"field":' .. cjson.encode(field)
  if old[n] then text = text .. ',"old":' .. cjson.encode(old[n]) end
  if operation == 'set' then
    redis.call('HSET', hash, field, value)
    text = text .. ',"new":' .. cjson.encode(value)
  else
    redis.call('HDEL', hash, field)
  end
  write_texts[n] = text .. '}'
end
redis.call('LPUSH', history, ARGV[3] .. ',"version":' .. string.format('%d', version) .. ',"changes":[' .. table.concat(write_texts, ',') .. ']}')
redis.call('LTRIM', history, 0, ARGV[2] - 1)
local published = redis.pcall('PUBLISH', ARGV[1], ARGV[4])
local reply = {'ok', version, type(published) == 'table' and published.err or ''}
for i = 1, n do reply[i + 3] = old[i] end
return reply
`)

// MakeChange makes a change and notifies all replicas, in one atomic step. If Run is running, the change is in force
// when MakeChange returns. If a condition doesn't hold, the error is a changes.ConflictError.
//
// After a connection error, Redis may have made the change. The next full read then applies the change.
func (s *Store) MakeChange(ctx context.Context, c changes.Change) (changes.Result, error) {
	if err := s.lock(ctx); err != nil { // a full read must not apply older values after the change
		return changes.Result{}, fmt.Errorf("write an override: %w", err)
	}
	defer s.unlock()
	reply, err := changeScript.Run(ctx, s.options.Client, []string{s.hash, s.historyList}, s.changeArgs(c)...).Slice()
	if err != nil {
		s.requestRead()                                                                                                    // the change may have been made
		if _, isCluster := s.options.Client.(*goredis.ClusterClient); !isCluster && errors.Is(err, syscall.ECONNREFUSED) { // a Cluster repeats calls
			err = fmt.Errorf("%w: %w", changes.ErrNotSent, err)
		}
		return changes.Result{}, s.wrapError("write an override", err)
	}
	if reply[0] == "conflict" {
		s.requestRead() // this replica may have missed a change
		field, _ := reply[1].(string)
		return changes.Result{}, &changes.ConflictError{Field: field, CurrentValue: textOrNil(reply[2])}
	}
	r := changes.Result{}
	r.Version, _ = reply[1].(int64)
	if problem, _ := reply[2].(string); problem != "" {
		s.options.Log.Warn("override written; other replicas not notified", "found_within", s.options.Resync, "error", problem)
	}
	for _, oldValue := range reply[3:] {
		r.OldValues = append(r.OldValues, textOrNil(oldValue))
	}
	s.checkForLostData(r.Version - 1) // the version before the change
	s.version.Store(r.Version)
	s.applyWrites(ctx, c.Writes)
	return r, nil
}

func (s *Store) changeArgs(c changes.Change) []any {
	entry, _ := json.Marshal(changes.NewEntry(changes.Change{Origin: c.Origin}, changes.Result{}))
	// The script adds the version and the writes.
	text := strings.TrimSuffix(strings.Replace(string(entry), `"version":0`, `"id":"`+rand.Text()+`"`, 1), `,"changes":null}`)
	args := []any{s.hash, changes.MaxHistory, text}
	for _, w := range c.Writes {
		exists, tag, operation, value := "", w.Condition.Tag, "delete", ""
		switch {
		case w.Condition.Absent && (w.Condition.Exists || tag != ""):
			tag = "none" // a condition that never holds, because no value has the tag "none"
		case w.Condition.Absent:
			exists = "no"
		case w.Condition.Exists:
			exists = "yes"
		}
		if w.Value != nil {
			operation, value = "set", *w.Value
		}
		args = append(args, w.Field, exists, tag, operation, value)
	}
	return args
}

func textOrNil(reply any) *string {
	if text, ok := reply.(string); ok {
		return &text
	}
	return nil
}

// applyWrites applies the writes that MakeChange has made. The caller holds the mutex.
func (s *Store) applyWrites(ctx context.Context, writes []changes.Write) {
	switch {
	case s.apply == nil:
		return
	case s.appliedValues == nil:
		_ = s.readAll(ctx) // after a failure, Run retries
		return
	}
	newValues := changes.ApplyWrites(s.appliedValues, writes)
	if !maps.Equal(s.appliedValues, newValues) {
		s.appliedValues = newValues
		_ = s.apply(source.Update{Overrides: newValues, Outage: s.outage})
	}
	s.requestReplicaReport()
}

// Version returns the version of the last change that this replica knows.
func (s *Store) Version() int64 { return s.version.Load() }

// History returns the last changes, the newest first.
func (s *Store) History(ctx context.Context) ([]changes.Entry, error) {
	texts, err := s.options.Client.LRange(ctx, s.historyList, 0, changes.MaxHistory-1).Result()
	if err != nil {
		return nil, s.wrapError("read the history", err)
	}
	var history []changes.Entry
	for _, text := range texts {
		var e changes.Entry
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			break // rls did not write this entry, so nobody knows what changed between the older and the newer entries
		}
		history = append(history, e)
	}
	return history, nil
}
