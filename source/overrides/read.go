package overrides

import (
	"context"
	"errors"
	"maps"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// read reads everything, or only the targets, and tells Apply if something changed.
func (s *Store) read(ctx context.Context, everything bool, targets []string) error {
	if err := s.takeTurn(ctx); err != nil {
		return err
	}
	defer s.endTurn()
	if everything || s.known == nil {
		return s.readAll(ctx)
	}
	return s.readSome(ctx, targets)
}

// readAll needs the turn, as all that follows.
func (s *Store) readAll(ctx context.Context) error {
	all, err := s.o.Client.HGetAll(ctx, s.hash).Result()
	if err != nil {
		return s.explain("read all overrides", err)
	}
	s.removeExpired(ctx, all)
	if crowded := len(all) > expectedFields; crowded != s.crowded {
		if s.crowded = crowded; crowded {
			s.o.Log.Warn("there are many overrides; each full read takes time and memory", "overrides", len(all), "expected", expectedFields)
		}
	}
	if s.known == nil || !maps.Equal(s.known, all) {
		s.known = all
		s.o.Apply(all)
	}
	return nil
}

func (s *Store) readSome(ctx context.Context, targets []string) error {
	values, err := s.o.Client.HMGet(ctx, s.hash, targets...).Result()
	if err != nil {
		return s.explain("read changed overrides", err)
	}
	changed := false
	for i, v := range values {
		value, there := v.(string)
		changed = s.set(targets[i], value, there) || changed
	}
	if changed {
		s.o.Apply(s.known)
	}
	return nil
}

// applyOwn tells Apply what write has written.
func (s *Store) applyOwn(ctx context.Context, target string, value *string) {
	if s.known == nil {
		_ = s.readAll(ctx) // what fails Run is about to try again
		return
	}
	var text string
	if value != nil {
		text = *value
	}
	if s.set(target, text, value != nil) {
		s.o.Apply(s.known)
	}
}

// set tells whether it changed what is known.
func (s *Store) set(target, value string, there bool) bool {
	before, known := s.known[target]
	if known == there && before == value {
		return false
	}
	if there {
		s.known[target] = value
	} else {
		delete(s.known, target)
	}
	return true
}

// removeExpired removes the expired of all, there and in Redis. Who got a new value
// meanwhile stays, and so do all if the hash changes while they are being removed:
// the next full read has another try. That other replicas do the same is no harm, and
// a replica whose clock is ahead does none, as they must be over by that of Redis, too.
func (s *Store) removeExpired(ctx context.Context, all map[string]string) {
	var expired []string
	now := time.Now()
	for target, value := range all {
		if s.o.Expired(value, now) {
			expired = append(expired, target)
		}
	}
	if len(expired) == 0 {
		return
	}
	var gone []string
	err := s.o.Client.Watch(ctx, func(tx *goredis.Tx) error {
		values, err := tx.HMGet(ctx, s.hash, expired...).Result()
		if err != nil {
			return err
		}
		now, err := tx.Time(ctx).Result()
		if err != nil {
			return err
		}
		gone = gone[:0]
		for i, target := range expired {
			if values[i] == all[target] && s.o.Expired(all[target], now) {
				gone = append(gone, target)
			}
		}
		if len(gone) == 0 {
			return nil
		}
		_, err = tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
			p.HDel(ctx, s.hash, gone...)
			return nil
		})
		return err
	}, s.hash)
	switch {
	case err == nil:
		s.expiredRemain = false
		for _, target := range gone {
			delete(all, target)
		}
	case !errors.Is(err, goredis.TxFailedErr) && ctx.Err() == nil && !s.expiredRemain:
		s.expiredRemain = true
		s.o.Log.Warn("expired overrides can't be removed from Redis", "error", err)
	}
}
