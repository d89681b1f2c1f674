package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// selectTemplates is what decodeTemplate reads.
const selectTemplates = `SELECT id, owner, name, public, shared, spawned, created_at, updated_at,
	(SELECT json_group_object(tag, build) FROM template_tags WHERE template = templates.id) AS tags FROM templates `

// EnsureTemplate returns the owner's template of a name, making it first if need be: then
// with the ID and times of t. An owner may have most.
//
// Invalid: it is out of bounds. Exhausted: the owner has as many as there may be.
func (s *Templates) EnsureTemplate(ctx context.Context, t sandpit.Template, most int) (sandpit.Template, error) {
	t.CreatedAt, t.UpdatedAt = roundTime(t.CreatedAt), roundTime(t.UpdatedAt)
	if problem := templateProblem(t); problem != "" {
		return sandpit.Template{}, sandpit.Errorf(sandpit.Invalid, "template: %s is out of bounds", problem)
	}
	err := s.db.writeTx(ctx, func(tx *writer) error {
		n, err := tx.exec(ctx, `UPDATE templates SET updated_at = ?3 WHERE owner = ?1 AND name = ?2`, t.Owner, t.Name, toMicros(t.UpdatedAt))
		if err != nil || n > 0 {
			return err
		}
		n, err = tx.exec(ctx, `INSERT INTO templates (id, owner, name, public, spawned, created_at, updated_at)
			SELECT ?1, ?2, ?3, ?4, 0, ?5, ?6 WHERE (SELECT count(*) FROM templates WHERE owner = ?2) < ?7`,
			string(t.ID), t.Owner, t.Name, t.Public, toMicros(t.CreatedAt), toMicros(t.UpdatedAt), most)
		if err == nil && n == 0 {
			err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "there are %d templates of this owner already, and no more may be made", most),
				"remove unused ones")
		}
		return err
	})
	if err != nil {
		return sandpit.Template{}, s.db.wrapError(err, "keep a template")
	}
	return s.TemplateNamed(ctx, t.Owner, t.Name)
}

// Template returns a template of any owner. NotFound.
func (s *Templates) Template(ctx context.Context, id sandpit.TemplateID) (sandpit.Template, error) {
	return s.oneTemplate(ctx, string(id), `WHERE id = ?`, string(id))
}

// TemplateNamed returns an owner's template. NotFound.
func (s *Templates) TemplateNamed(ctx context.Context, owner, name string) (sandpit.Template, error) {
	return s.oneTemplate(ctx, name, `WHERE owner = ? AND name = ?`, owner, name)
}

// SharedTemplate returns the template that a name means to every owner: of several, the
// one that was there first. NotFound.
func (s *Templates) SharedTemplate(ctx context.Context, name string) (sandpit.Template, error) {
	return s.oneTemplate(ctx, name, `WHERE shared AND public AND name = ? ORDER BY created_at, id LIMIT 1`, name)
}

func (s *Templates) oneTemplate(ctx context.Context, name, where string, args ...any) (sandpit.Template, error) {
	list, err := s.queryTemplates(ctx, where, args...)
	if err != nil {
		return sandpit.Template{}, s.db.wrapError(err, "look for a template")
	}
	if len(list) == 0 {
		return sandpit.Template{}, noTemplate(name)
	}
	return list[0], nil
}

func noTemplate(name string) error {
	return sandpit.Errorf(sandpit.NotFound, "template %.100s not found", name)
}

// TemplateFilter chooses templates. Fields that are zero choose everything.
type TemplateFilter struct {
	// Owner is whose, unless All is set.
	Owner string
	// All includes every owner.
	All bool
	// Public adds those of others that are public.
	Public bool
	// After is the ID of the last template of the page before.
	After sandpit.TemplateID
	// Limit is at most so many. Default: all.
	Limit int
}

// ListTemplates returns templates in the order of their IDs. A row that cannot be read is an
// error.
func (s *Templates) ListTemplates(ctx context.Context, f TemplateFilter) ([]sandpit.Template, error) {
	list, err := s.queryTemplates(ctx, `WHERE id > ?1 AND (?2 OR owner = ?3 OR ?4 AND public) ORDER BY id LIMIT ?5`,
		string(f.After), f.All, f.Owner, f.Public, cmp.Or(f.Limit, -1))
	if err != nil {
		return nil, s.db.wrapError(err, "list templates")
	}
	return list, nil
}

func (s *Templates) queryTemplates(ctx context.Context, where string, args ...any) ([]sandpit.Template, error) {
	var list []sandpit.Template
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, selectTemplates+where, args, func(c *cells) bool {
			t := decodeTemplate(c)
			if c.err != nil {
				bad = sandpit.Errorf(sandpit.Internal, "template %.40q: %w", string(t.ID), c.err)
				return false
			}
			list = append(list, t)
			return true
		})
	})
	return list, cmp.Or(err, bad)
}

func decodeTemplate(c *cells) sandpit.Template {
	t := sandpit.Template{
		ID: sandpit.TemplateID(c.nextText()), Owner: c.nextText(), Name: c.nextText(), Public: c.nextInt() != 0, Shared: c.nextInt() != 0, Spawned: c.nextInt(),
		CreatedAt: c.nextTime(), UpdatedAt: c.nextTime(),
	}
	if tags := c.nextText(); c.err == nil && json.Unmarshal([]byte(tags), &t.Tags) != nil {
		c.rejectValue("tags")
	}
	if problem := templateProblem(t); c.err == nil && problem != "" {
		c.rejectValue(problem)
	}
	return t
}

// templateProblem names what is wrong with a template, "" for nothing.
func templateProblem(t sandpit.Template) string {
	switch {
	case t.ID.Validate() != nil:
		return "id"
	case len(t.Owner) > MaxName || !utf8.ValidString(t.Owner):
		return "owner"
	case sandpit.CheckTemplateName(t.Name) != nil:
		return "name"
	case !inRange(t.CreatedAt) || !inRange(t.UpdatedAt):
		return "date"
	}
	return ""
}

// SetTemplatePublic writes whether sandboxes of every owner may be made of a template, and
// whether its bare name means it to every owner. NotFound: it is gone.
func (s *Templates) SetTemplatePublic(ctx context.Context, id sandpit.TemplateID, public, shared bool) error {
	return s.changeTemplate(ctx, string(id), `UPDATE templates SET public = ?2, shared = ?3 WHERE id = ?1`, string(id), public, public && shared)
}

// CountSpawned adds n to the sandboxes that were made of a template. NotFound: it is
// gone.
func (s *Templates) CountSpawned(ctx context.Context, id sandpit.TemplateID, n int64) error {
	return s.changeTemplate(ctx, string(id), `UPDATE templates SET spawned = spawned + ?2 WHERE id = ?1`, string(id), n)
}

// MaxTags is how many tags a template may have.
const MaxTags = 100

// SetTag has a tag of a template mean a build of it that is ready. NotFound: the template
// has no such build. Exhausted: it has MaxTags others.
func (s *Templates) SetTag(ctx context.Context, id sandpit.TemplateID, tag string, build sandpit.BuildID, now time.Time) error {
	b := sandpit.TemplateBuild{ID: build, Template: id, FinishedAt: now}
	err := s.db.writeTx(ctx, func(tx *writer) error { return setTag(ctx, tx, tag, b) })
	if err != nil {
		return s.db.wrapError(err, "tag a template")
	}
	return nil
}

// setTag has a tag mean a build from the time on at which that was finished.
func setTag(ctx context.Context, tx *writer, tag string, b sandpit.TemplateBuild) error {
	if err := sandpit.CheckTemplateName(tag); err != nil {
		return err
	}
	var others int
	err := tx.scanRow(ctx, `SELECT count(*) FROM template_tags WHERE template = ?1 AND tag <> ?2`, []any{string(b.Template), tag}, &others)
	if err == nil && others >= MaxTags {
		err = sandpit.Errorf(sandpit.Exhausted, "the template has %d tags, and no more may be made", others)
	}
	if err != nil {
		return err
	}
	n, err := tx.exec(ctx, `INSERT INTO template_tags (template, tag, build)
		SELECT template, ?2, id FROM template_builds WHERE id = ?3 AND template = ?1 AND status = ?4 AND template IN (SELECT id FROM templates)
		ON CONFLICT DO UPDATE SET build = excluded.build`, string(b.Template), tag, string(b.ID), string(sandpit.BuildReady))
	if err == nil && n == 0 {
		err = sandpit.Errorf(sandpit.NotFound, "the template has no build %.40s that is ready", string(b.ID))
	}
	if err == nil {
		_, err = tx.exec(ctx, `UPDATE templates SET updated_at = ?2 WHERE id = ?1`, string(b.Template), toMicros(roundTime(b.FinishedAt)))
	}
	return err
}

// DeleteTag forgets a tag of a template; its build stays for a while. NotFound.
func (s *Templates) DeleteTag(ctx context.Context, id sandpit.TemplateID, tag string) error {
	return s.changeTemplate(ctx, tag, `DELETE FROM template_tags WHERE template = ?1 AND tag = ?2`, string(id), tag)
}

// DeleteTemplate deletes a template and its tags. The caller removes its builds. NotFound.
func (s *Templates) DeleteTemplate(ctx context.Context, id sandpit.TemplateID) error {
	var n int64
	err := s.db.writeAnyway(ctx, func(tx *writer) (err error) {
		if _, err = tx.exec(ctx, `DELETE FROM template_tags WHERE template = ?`, string(id)); err == nil {
			n, err = tx.exec(ctx, `DELETE FROM templates WHERE id = ?`, string(id))
		}
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "forget a template")
	}
	if n == 0 {
		return noTemplate(string(id))
	}
	return nil
}

func (s *Templates) changeTemplate(ctx context.Context, name, statement string, args ...any) error {
	var n int64
	err := s.db.writeAnyway(ctx, func(tx *writer) (err error) {
		n, err = tx.exec(ctx, statement, args...)
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "change a template")
	}
	if n == 0 {
		return noTemplate(name)
	}
	return nil
}

// TemplateBuild is a build as it is kept.
type TemplateBuild struct {
	sandpit.TemplateBuild

	Owner string // of the template
}

const (
	buildColumns = `id, template, owner, status, tags, message, step, recipe, image, snapshot, size, resources, created_at, started_at, finished_at`
	// briefBuildColumns have an empty recipe.
	briefBuildColumns = `id, template, owner, status, tags, message, step, '{}', image, snapshot, size, resources, created_at, started_at, finished_at`
)

// TemplateLimits are what each owner may have.
type TemplateLimits struct {
	// Bytes of all builds together; 0 is without a limit.
	Bytes int64
	// Pending is how many builds may be waiting or running.
	Pending int
}

// InsertBuild adds a build.
//
// NotFound: its template is gone. Invalid: it is out of bounds. Exhausted: the owner has
// as much as there may be.
func (s *Templates) InsertBuild(ctx context.Context, b TemplateBuild, most TemplateLimits) error {
	values, err := encodeBuild(b)
	if err != nil {
		return err
	}
	err = s.db.writeTx(ctx, func(tx *writer) error {
		var pending int
		var bytes int64
		err := tx.scanRow(ctx, `SELECT count(*) FILTER (WHERE status IN (?2, ?3)), ifnull(sum(size), 0) FROM template_builds WHERE owner = ?1`,
			[]any{b.Owner, string(sandpit.BuildWaiting), string(sandpit.BuildBuilding)}, &pending, &bytes)
		switch {
		case err != nil:
			return err
		case pending >= most.Pending:
			return sandpit.Errorf(sandpit.Exhausted, "quota exceeded: %d builds of this owner are waiting or running", pending)
		case most.Bytes > 0 && bytes >= most.Bytes:
			return most.exceededError(bytes)
		}
		n, err := tx.exec(ctx, `INSERT INTO template_builds (`+buildColumns+`) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15
			WHERE ?2 IN (SELECT id FROM templates)`, values...)
		if err == nil && n == 0 {
			err = noTemplate(string(b.Template))
		}
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "keep a build")
	}
	return nil
}

func (l TemplateLimits) exceededError(bytes int64) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Exhausted, "the templates of this owner use %d bytes; the limit is %d", bytes, l.Bytes),
		"remove unused ones")
}

// UpdateBuild writes what is known of a build by now, if it is as it was: in the status
// from. NotFound: it is gone, or was changed.
func (s *Templates) UpdateBuild(ctx context.Context, b TemplateBuild, from sandpit.BuildStatus) error {
	return s.finishBuild(ctx, b, from, nil, TemplateLimits{})
}

// FinishBuild stores the result of a build, and its log. A ready build gets its tags unless
// its template was deleted.
//
// NotFound. Exhausted: the builds of the owner exceed their size limit.
func (s *Templates) FinishBuild(ctx context.Context, b TemplateBuild, log []sandpit.BuildLog, most TemplateLimits) error {
	return s.finishBuild(ctx, b, sandpit.BuildBuilding, log, most)
}

func (s *Templates) finishBuild(
	ctx context.Context, b TemplateBuild, from sandpit.BuildStatus, log []sandpit.BuildLog, most TemplateLimits,
) error {
	values, err := encodeBuild(b)
	if err != nil {
		return err
	}
	entries, err := json.Marshal(log)
	if err != nil {
		return err
	}
	err = s.db.writeTx(ctx, func(tx *writer) error {
		if err := most.checkLimits(ctx, tx, b); err != nil {
			return err
		}
		n, err := tx.exec(ctx, `UPDATE template_builds SET status = ?4, tags = ?5, message = ?6, step = ?7, recipe = ?8, image = ?9,
			snapshot = ?10, size = ?11, resources = ?12, started_at = ?14, finished_at = ?15
			WHERE id = ?1 AND template = ?2 AND owner = ?3 AND created_at IS ?13 AND status = ?16`, append(values, string(from))...)
		if err == nil && n == 0 {
			err = noBuild(b.ID)
		}
		if err == nil && log != nil {
			_, err = tx.exec(ctx, `INSERT OR REPLACE INTO template_logs (build, entries) VALUES (?, ?)`, string(b.ID), string(entries))
		}
		if err != nil || b.Status != sandpit.BuildReady {
			return err
		}
		for _, tag := range b.Tags {
			if err := setTag(ctx, tx, tag, b.TemplateBuild); err != nil && !errors.Is(err, sandpit.NotFound) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return s.db.wrapError(err, "change a build")
	}
	return nil
}

func (l TemplateLimits) checkLimits(ctx context.Context, tx *writer, b TemplateBuild) error {
	if l.Bytes == 0 || b.Status != sandpit.BuildReady {
		return nil
	}
	var bytes int64
	err := tx.scanRow(ctx, `SELECT ifnull(sum(size), 0) FROM template_builds WHERE owner = ? AND id <> ?`, []any{b.Owner, string(b.ID)}, &bytes)
	if err == nil && bytes+b.Size > l.Bytes {
		err = l.exceededError(bytes + b.Size)
	}
	return err
}

func noBuild(id sandpit.BuildID) error {
	return sandpit.Errorf(sandpit.NotFound, "build %.40s not found", string(id))
}

// encodeBuild checks a build and returns its columns.
func encodeBuild(b TemplateBuild) ([]any, error) {
	b.Reason.Message, b.Reason.Step = shortenText(b.Reason.Message), shortenText(b.Reason.Step)
	if problem := b.describeProblem(); problem != "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "build: %s is out of bounds", problem)
	}
	texts := make([]string, 3)
	for i, part := range []any{b.Tags, b.Recipe, b.Resources} {
		text, err := json.Marshal(part)
		if err != nil || len(text) > MaxSpec {
			return nil, sandpit.Errorf(sandpit.Invalid, "build: recipe is out of bounds")
		}
		texts[i] = strings.ToValidUTF8(string(text), "\uFFFD")
	}
	return []any{
		string(b.ID), string(b.Template), b.Owner, string(b.Status), texts[0], b.Reason.Message, b.Reason.Step, texts[1],
		string(b.Image), string(b.Snapshot), b.Size, texts[2],
		toMicros(roundTime(b.CreatedAt)), toMicros(roundTime(b.StartedAt)), toMicros(roundTime(b.FinishedAt)),
	}, nil
}

// describeProblem names what is wrong with a build, "" for nothing.
func (b TemplateBuild) describeProblem() string {
	switch {
	case b.ID.Validate() != nil:
		return "id"
	case b.Template.Validate() != nil:
		return "template"
	case len(b.Owner) > MaxName || !utf8.ValidString(b.Owner):
		return "owner"
	case !b.Status.Valid():
		return "status"
	case len(b.Tags) > MaxTags:
		return "tags"
	case b.Snapshot != "" && b.Snapshot.Validate() != nil:
		return "snapshot"
	case len(b.Image) > MaxName || !utf8.ValidString(string(b.Image)):
		return "image"
	case b.Size < 0:
		return "size"
	case !inRange(b.CreatedAt) || !inRange(b.StartedAt) || !inRange(b.FinishedAt):
		return "date"
	}
	return ""
}
