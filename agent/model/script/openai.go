package script

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// openAI is what OpenAI's two protocols have in common.
type openAI struct{ azure bool }

const invalidRequest = "invalid_request_error"

func (openAI) child(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (openAI) item(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

func (openAI) unknown(path string) *refusal {
	return refuseParameter(path, "unknown_parameter", fmt.Sprintf("Unknown parameter: '%s'.", path))
}

func (openAI) missing(path string) *refusal {
	return refuseParameter(path, "missing_required_parameter", fmt.Sprintf("Missing required parameter: '%s'.", path))
}

func (openAI) wrongType(path, want string, got json.RawMessage) *refusal {
	article := "a"
	if strings.ContainsAny(want[:1], "aeiou") {
		article = "an"
	}
	return refuseParameter(path, "invalid_type", fmt.Sprintf("Invalid type for '%s': expected %s %s, but got %s instead.", path, article, want, nameOfType(got)))
}

func (openAI) outOfRange(path string, bound float64, above bool) *refusal {
	kind := "decimal"
	if strings.Contains(path, "tokens") {
		kind = "integer"
	}
	code, sign, word := kind+"_below_min_value", ">=", "below minimum"
	if above {
		code, sign, word = kind+"_above_max_value", "<=", "above maximum"
	}
	return refuseParameter(path, code, fmt.Sprintf("Invalid '%s': %s %s value. Expected a value %s %v.", path, kind, word, sign, bound))
}

func (openAI) invalid(path, message string) *refusal {
	return refuseParameter(path, "invalid_value", message)
}

func refuseParameter(param, code, message string) *refusal {
	return &refusal{status: http.StatusBadRequest, kind: invalidRequest, code: code, param: param, message: message}
}

// nameOfType says what a value is.
func nameOfType(raw json.RawMessage) string {
	switch (field{raw: raw}).kind() {
	case 0:
		return "null"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	}
	return "a number"
}

func (o openAI) authorize(r *http.Request) (string, *refusal) {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if o.azure {
		if r.URL.Query().Get("api-version") == "" {
			return "", &refusal{status: http.StatusNotFound, code: "404", message: "Resource not found"}
		}
		key, ok = r.Header.Get("Api-Key"), r.Header.Get("Api-Key") != ""
	}
	if !ok || key == "" {
		return "", &refusal{status: http.StatusUnauthorized, kind: invalidRequest, message: "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth."}
	}
	return key, nil
}

func (openAI) wrongKey(key string) *refusal {
	shown := key
	if len(key) > 12 {
		shown = key[:8] + strings.Repeat("*", len(key)-12) + key[len(key)-4:]
	}
	return &refusal{status: http.StatusUnauthorized, kind: invalidRequest, code: "invalid_api_key", message: "Incorrect API key provided: " + shown + ". You can find your API key in your account."}
}

func (openAI) unknownModel(name string) *refusal {
	return &refusal{
		status: http.StatusNotFound, kind: invalidRequest, code: "model_not_found", param: "model",
		message: fmt.Sprintf("The model `%s` does not exist or you do not have access to it.", name),
	}
}

func (openAI) headerOfID() string { return "X-Request-Id" }

func (openAI) failure(f *Failure) *refusal {
	r := map[Kind]*refusal{
		RateLimit:       {status: http.StatusTooManyRequests, kind: "requests", code: "rate_limit_exceeded"},
		Quota:           {status: http.StatusTooManyRequests, kind: "insufficient_quota", code: "insufficient_quota"},
		Overloaded:      {status: http.StatusServiceUnavailable, kind: "server_error"},
		ServerError:     {status: http.StatusInternalServerError, kind: "server_error"},
		Unauthenticated: {status: http.StatusUnauthorized, kind: invalidRequest, code: "invalid_api_key"},
		InvalidRequest:  {status: http.StatusBadRequest, kind: invalidRequest},
		TooLong:         {status: http.StatusBadRequest, kind: invalidRequest, code: "context_length_exceeded", param: "messages"},
	}[f.Kind]
	r.message, r.retryHeader = f.message(), f.retryHeader()
	return r
}

func (openAI) writeRefusal(w http.ResponseWriter, r *refusal, _ string) {
	setRetryAfter(w, r)
	writeJSON(w, r.status, map[string]any{"error": r.document()})
}

// document returns the object that describes the error.
func (r *refusal) document() map[string]any {
	return map[string]any{"message": r.message, "type": r.kind, "param": textOrNull(r.param), "code": textOrNull(r.code)}
}

func textOrNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// readDataURL reads an image.
func readDataURL(c *checker, f field) model.Image {
	address := c.text(c.need(f))
	kind, encoded, ok := strings.Cut(strings.TrimPrefix(address, "data:"), ";base64,")
	if c.err != nil {
		return model.Image{}
	}
	if !strings.HasPrefix(address, "data:") || !ok {
		c.fail(refuseParameter(f.path, "invalid_image_url", "Failed to download image: this server accepts data URLs only."))
		return model.Image{}
	}
	image, err := decodeImage(encoded)
	switch {
	case err != nil && err != errNoImage: //nolint:errorlint // decodeImage returns it as it is
		c.fail(refuseParameter(f.path, "invalid_base64", "Invalid base64 image_url."))
	case err != nil || !strings.HasPrefix(kind, "image/"):
		c.fail(refuseParameter(f.path, "invalid_image_format", "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png', 'jpeg', 'gif', 'webp']."))
	}
	return image
}

// readFunction reads a tool from the fields that describe a function.
func readFunction(c *checker, f map[string]field) model.Tool {
	t := model.Tool{Name: c.text(c.need(f["name"])), Description: c.text(f["description"]), Schema: f["parameters"].raw}
	c.boolean(f["strict"])
	if c.err != nil {
		return t
	}
	if !isToolName(t.Name, 64) {
		c.fail(refuseParameter(f["name"].path, "invalid_value", fmt.Sprintf(
			"Invalid '%s': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", f["name"].path)))
	}
	if f["parameters"].isSet() && typeOf(t.Schema) != "object" {
		c.fail(refuseParameter(f["parameters"].path, "invalid_function_parameters", fmt.Sprintf(
			"Invalid schema for function '%s': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"%s\"'.", t.Name, typeOf(t.Schema))))
	}
	return t
}

// readChoice reads tool_choice: a word, or an object that names a tool.
func readChoice(c *checker, f field, tools []model.Tool) (must bool) {
	if c.err != nil || !f.isSet() {
		return false
	}
	if len(tools) == 0 {
		c.invalid(f, "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.")
		return false
	}
	if f.kind() == '{' {
		return true
	}
	switch word := c.text(f); word {
	case "none", "auto":
	case "required":
		return true
	default:
		c.invalid(f, fmt.Sprintf("Invalid value: '%s'. Supported values are: 'none', 'auto', and 'required'.", word))
	}
	return false
}
