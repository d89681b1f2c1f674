package store

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// BuildFilter chooses builds. Fields that are zero choose everything.
type BuildFilter struct {
	Template sandpit.TemplateID
	Status   sandpit.BuildStatus
	// Owner is the owner of the template.
	Owner string
	// Loose are those that no tag means.
	Loose bool
	// Brief leaves the recipes out, which may be large.
	Brief bool
	// Limit is at most so many. Default: all.
	Limit int
}

// ListBuilds returns builds, the newest first. A row that cannot be read is an error. While it
// reads, recipes are taken from the account of memory of ctx.
//
// Exhausted: not enough memory.
func (s *Templates) ListBuilds(ctx context.Context, f BuildFilter) ([]TemplateBuild, error) {
	where, args := []string{"TRUE"}, []any{}
	if f.Template != "" {
		where, args = append(where, "template = ?"), append(args, string(f.Template))
	}
	if f.Status != "" {
		where, args = append(where, "status = ?"), append(args, string(f.Status))
	}
	if f.Owner != "" {
		where, args = append(where, "owner = ?"), append(args, f.Owner)
	}
	if f.Loose {
		where = append(where, "id NOT IN (SELECT build FROM template_tags)")
	}
	columns := buildColumns
	if f.Brief {
		columns = briefBuildColumns
	}
	list, err := s.queryBuilds(ctx, columns, `WHERE `+strings.Join(where, " AND ")+` ORDER BY created_at DESC, id LIMIT ?`, append(args, cmp.Or(f.Limit, -1))...)
	if err != nil {
		return nil, s.db.wrapError(err, "list builds")
	}
	return list, nil
}

// Build returns a build. NotFound.
func (s *Templates) Build(ctx context.Context, id sandpit.BuildID) (TemplateBuild, error) {
	return s.oneBuild(ctx, id, `WHERE id = ?`, string(id))
}

// BuildOfSnapshot returns the build that has a snapshot. NotFound.
func (s *Templates) BuildOfSnapshot(ctx context.Context, id sandpit.SnapshotID) (TemplateBuild, error) {
	return s.oneBuild(ctx, "of snapshot "+sandpit.BuildID(id), `WHERE snapshot = ?1 AND ?1 <> ''`, string(id))
}

func (s *Templates) oneBuild(ctx context.Context, id sandpit.BuildID, where string, args ...any) (TemplateBuild, error) {
	list, err := s.queryBuilds(ctx, buildColumns, where, args...)
	if err != nil {
		return TemplateBuild{}, s.db.wrapError(err, "look for a build")
	}
	if len(list) == 0 {
		return TemplateBuild{}, noBuild(id)
	}
	return list[0], nil
}

func (s *Templates) queryBuilds(ctx context.Context, columns, where string, args ...any) ([]TemplateBuild, error) {
	var list []TemplateBuild
	var bad error
	account, reserved := memory.AccountOf(ctx), int64(0)
	defer func() { account.Return(reserved) }() // the caller reserves what it keeps
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT `+columns+` FROM template_builds `+where, args, func(c *cells) bool {
			b := decodeBuild(c)
			if c.err != nil {
				bad = sandpit.Errorf(sandpit.Internal, "build %.40q: %w", string(b.ID), c.err)
				return false
			}
			size := recipeCost * memory.SizeOf(b.Recipe)
			if bad = account.Reserve(size); bad != nil {
				return false
			}
			reserved += size
			list = append(list, b)
			return true
		})
	})
	return list, cmp.Or(err, bad)
}

// recipeCost is how many bytes each byte of a recipe takes while it is read: as text, and as a
// value.
const recipeCost = 2

func decodeBuild(c *cells) TemplateBuild {
	var b TemplateBuild
	b.ID, b.Template, b.Owner = sandpit.BuildID(c.nextText()), sandpit.TemplateID(c.nextText()), c.nextText()
	b.Status = sandpit.BuildStatus(c.nextText())
	tags := c.nextText()
	b.Reason.Message, b.Reason.Step = c.nextText(), c.nextText()
	recipe := c.nextText()
	b.Image, b.Snapshot, b.Size = sandpit.Image(c.nextText()), sandpit.SnapshotID(c.nextText()), c.nextInt()
	resources := c.nextText()
	b.CreatedAt, b.StartedAt, b.FinishedAt = c.nextTime(), c.nextTime(), c.nextTime()
	for _, part := range []struct {
		name, text string
		to         any
	}{{"tags", tags, &b.Tags}, {"recipe", recipe, &b.Recipe}, {"resources", resources, &b.Resources}} {
		if c.err == nil && (len(part.text) > MaxSpec || json.Unmarshal([]byte(part.text), part.to) != nil) {
			c.rejectValue(part.name)
		}
	}
	if problem := b.describeProblem(); c.err == nil && problem != "" {
		c.rejectValue(problem)
	}
	return b
}

// BuildLog returns the log of a build that has ended, from behind the entry with the number
// after, at most limit entries. The log of a running build is not stored.
func (s *Templates) BuildLog(ctx context.Context, id sandpit.BuildID, after int64, limit int) ([]sandpit.BuildLog, error) {
	var list []sandpit.BuildLog
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT entries FROM template_logs WHERE build = ?`, []any{string(id)}, func(c *cells) bool {
			if text := c.nextText(); c.err == nil && json.Unmarshal([]byte(text), &list) != nil {
				c.rejectValue("entries")
			}
			if c.err != nil {
				bad = sandpit.Errorf(sandpit.Internal, "log of build %.40q: %w", string(id), c.err)
			}
			return false
		})
	})
	if err = cmp.Or(err, bad); err != nil {
		return nil, s.db.wrapError(err, "read the log of a build")
	}
	return Page(list, after, limit), nil
}

// SaveBuildLog writes the log of a build. The log of a deleted build is discarded.
func (s *Templates) SaveBuildLog(ctx context.Context, id sandpit.BuildID, log []sandpit.BuildLog) error {
	entries, err := json.Marshal(log)
	if err != nil {
		return err
	}
	err = s.db.writeTx(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `INSERT OR REPLACE INTO template_logs (build, entries)
			SELECT id, ?2 FROM template_builds WHERE id = ?1`, string(id), string(entries))
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "keep the log of a build")
	}
	return nil
}

// Page returns the entries of a log from behind the one with the number after, at most
// limit.
func Page(log []sandpit.BuildLog, after int64, limit int) []sandpit.BuildLog {
	from := min(max(after, 0), int64(len(log)))
	log = log[from:]
	return log[:min(len(log), max(limit, 0))]
}

// DeleteBuild deletes a build, its log and its tags. A missing build is not an error.
func (s *Templates) DeleteBuild(ctx context.Context, id sandpit.BuildID) error {
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		for _, statement := range []string{
			`DELETE FROM template_tags WHERE build = ?`, `DELETE FROM template_logs WHERE build = ?`, `DELETE FROM template_builds WHERE id = ?`,
		} {
			if _, err := tx.exec(ctx, statement, string(id)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return s.db.wrapError(err, "forget a build")
	}
	return nil
}

// BuildSnapshot returns a snapshot that belongs to a build of any owner. NotFound.
func (s *Templates) BuildSnapshot(ctx context.Context, id sandpit.SnapshotID) (Snapshot, error) {
	list, err := s.db.Snapshots().querySnapshots(ctx, `WHERE id = ? AND build <> ''`, string(id))
	if err != nil {
		return Snapshot{}, s.db.wrapError(err, "look for a snapshot")
	}
	if len(list) == 0 {
		return Snapshot{}, sandpit.Errorf(sandpit.NotFound, "snapshot %.100s not found", string(id))
	}
	return list[0], nil
}
