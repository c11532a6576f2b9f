/** Forms for JSON: for the arguments of a call, and for a reply that has a schema. */
import { html, useState } from "./vendor/htm-preact-standalone.js";
import { Field, useId, visible } from "./ui.js";

const UNSAFE_TEXT = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]/;
const STRINGS = /"(?:[^"\\]|\\.)*"/g;

/**
 * The object of a JSON text, and whether JavaScript has it exactly; null if it is no object, or cut off.
 * A number of more than 15 digits, or the same name twice, is not exact: then only the text tells what is there.
 */
export function parsedArguments(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) return null;
  const numbers = text.replace(STRINGS, "").match(/-?\d[\d.eE+-]*/g) ?? [];
  const isExact = numbers.every((number) => number.replace(/\D/g, "").length <= 15) && namesIn(value) === namesOf(text);
  return { value, isExact };
}

/** How many names of fields a text has: a string before a colon. */
function namesOf(text) {
  return (text.match(/"(?:[^"\\]|\\.)*"\s*:?/g) ?? []).filter((token) => token.endsWith(":")).length;
}

function namesIn(value) {
  if (value === null || typeof value !== "object") return 0;
  const items = Object.values(value);
  return (Array.isArray(value) ? 0 : items.length) + items.reduce((sum, item) => sum + namesIn(item), 0);
}

/** A JSON text with line breaks. All of its tokens stay as they were written, also numbers that JavaScript can't hold. */
export function indented(text) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  return tokens.map((token, index) => {
    const isEmpty = /^[{[]$/.test(tokens[index - 1]);
    if (token === "{" || token === "[") {
      depth += 1;
      return /^[}\]]$/.test(tokens[index + 1]) ? token : token + line();
    }
    if (token === "}" || token === "]") {
      depth -= 1;
      return isEmpty ? token : line() + token;
    }
    return token === "," ? token + line() : token === ":" ? ": " : token;
  }).join("");
}

/** A JSON text, indented if that loses nothing, with visible escapes for what would be invisible. */
export function jsonText(text) {
  const parsed = parsedArguments(text);
  const shown = parsed?.isExact ? JSON.stringify(parsed.value, null, 2) : text;
  return shown.replace(new RegExp(UNSAFE_TEXT.source, "g"), (character) => (
    character < " " ? character : `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`
  ));
}

/** What is wrong with a text that has to be a JSON object; null if nothing is. */
export function problemOf(text) {
  return parsedArguments(text) === null ? new Error("The arguments have to be a JSON object, such as {\"name\": \"value\"}.") : null;
}

/** A form for a JSON object: a field for each value, or its text. `onChange` receives the text. */
export function FieldsForm({ text, onChange, labels = {} }) {
  const [asText, setAsText] = useState(false);
  const parsed = parsedArguments(text);
  const canHaveFields = parsed?.isExact && Object.keys(parsed.value).length > 0;
  if (asText || !canHaveFields) {
    return html`
      <${Field} label="Arguments as JSON" error=${parsed === null ? "This is not a JSON object yet." : null}>
        ${(field) => html`<textarea ...${field} class="code" rows=${rowsOf(text)} spellcheck=${false} value=${text} onInput=${(event) => onChange(event.currentTarget.value)}></textarea>`}
      <//>
      ${canHaveFields && html`<button type="button" class="link small" onClick=${() => setAsText(false)}>Edit in fields</button>`}`;
  }
  const set = (name) => (value) => onChange(JSON.stringify({ ...parsed.value, [name]: value }, null, 2));
  return html`
    <div>${Object.entries(parsed.value).map(([name, value]) => html`<${ValueField} key=${name} name=${labels[name] ?? name} value=${value} onChange=${set(name)} />`)}</div>
    <p><button type="button" class="link small" onClick=${() => setAsText(true)}>Edit as JSON</button></p>`;
}

function rowsOf(text) {
  return Math.min(30, Math.max(3, text.split("\n").length + 1, Math.ceil(text.length / 70)));
}

/** A field for a value of JSON. What a field of a page would change, such as a line break of Windows, is edited as JSON. */
function ValueField({ name, value, hint, isJson: isAlwaysJson = false, onChange }) {
  const [draft, setDraft] = useState(null);
  const label = html`<bdi>${visible(name)}</bdi>`;
  if (typeof value === "boolean" && !isAlwaysJson) {
    return html`<div class="field"><label class="check"><input type="checkbox" checked=${value} onChange=${(event) => onChange(event.currentTarget.checked)} /><span>${label}</span></label></div>`;
  }
  if (typeof value === "string" && !UNSAFE_TEXT.test(value) && !isAlwaysJson) {
    return html`
      <${Field} label=${label}>
        ${(field) => html`<textarea ...${field} class="fitted" dir="auto" rows=${Math.min(20, rowsOf(value) - 2)} value=${value} onInput=${(event) => onChange(event.currentTarget.value)}></textarea>`}
      <//>`;
  }
  const text = draft ?? jsonText(JSON.stringify({ value })).replace(/^\{\s*"value": /, "").replace(/\s*\}$/, "");
  const input = (event) => {
    const written = event.currentTarget.value;
    setDraft(written);
    try {
      onChange(JSON.parse(written));
    } catch {
      // what is being written is no JSON yet: the value stays, and the field says so
    }
  };
  return html`
    <${Field} label=${html`${label} ${typeof value === "number" && !isAlwaysJson ? "" : html`<span class="muted small">as JSON</span>`}`} hint=${hint} error=${isJson(text) ? null : "This is not JSON yet: the value of before is kept."}>
      ${(field) => (typeof value === "number" && !isAlwaysJson
        ? html`<input ...${field} inputmode="decimal" value=${text} onInput=${input} />`
        : html`<textarea ...${field} class="code" spellcheck=${false} rows=${rowsOf(text) - 1} value=${text} onInput=${input}></textarea>`)}
    <//>`;
}

/** Whether a text is JSON. */
export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * A form for a reply with a JSON Schema, or the reply as JSON, which any schema allows. `onChange` receives the reply as
 * JSON text; it is empty until all is there.
 */
export function SchemaForm({ schema: root, text: written = "", onChange }) {
  const [values, setValues] = useState(() => (isJson(written) ? JSON.parse(written) : defaultsOf(root, root)));
  const [text, setText] = useState(written && !isJson(written) ? written : null);
  const schema = resolved(root, root);
  const emit = (next) => {
    setValues(next);
    onChange(next === undefined ? "" : JSON.stringify(next));
  };
  if (text !== null) {
    const write = (written) => {
      setText(written);
      if (isJson(written)) setValues(JSON.parse(written));
      onChange(written);
    };
    return html`
      <${JsonReply} text=${text} onChange=${write} />
      <p><button type="button" class="link small" disabled=${!isJson(text)} onClick=${() => setText(null)}>Write in fields</button></p>`;
  }
  const asText = html`<p><button type="button" class="link small" onClick=${() => setText(JSON.stringify(values ?? null, null, 2))}>Write as JSON</button></p>`;
  if (!isObject(schema)) return html`<${SchemaField} name="Your reply" schema=${root} root=${root} value=${values} isRequired=${true} onChange=${emit} />${asText}`;
  return html`
    <div><${Properties} schema=${schema} root=${root} depth=${0} value=${values} onChange=${emit} /></div>
    ${asText}
    <${Started} onStart=${() => emit(values ?? {})} />`;
}

/** A field for a reply as JSON. */
export function JsonReply({ text, onChange }) {
  const error = text.trim() && !isJson(text) ? "This is not JSON yet." : null;
  return html`
    <${Field} label="Your reply as JSON" error=${error}>
      ${(field) => html`<textarea ...${field} class="code" rows=${rowsOf(text)} spellcheck=${false} value=${text} onInput=${(event) => onChange(event.currentTarget.value)}></textarea>`}
    <//>`;
}

/** The fields of an object. */
function Properties({ schema, root, depth, value, onChange }) {
  const required = new Set(schema.required ?? []);
  const set = (name) => (next) => {
    const { [name]: _, ...others } = value ?? {};
    onChange(next === undefined ? others : { ...others, [name]: next });
  };
  return Object.entries(schema.properties ?? {}).map(([name, property]) => html`
    <${SchemaField} key=${name} name=${property.title ?? name} schema=${property} root=${root} depth=${depth} value=${value?.[name]} isRequired=${required.has(name)} onChange=${set(name)} />`);
}

const MAX_HOPS = 20; // references from one to the next: those of a circle lead nowhere
const MAX_DEPTH = 5; // objects in objects with fields of their own; what is deeper, or refers to itself, is written as JSON

/** A schema without references, and with one type if it has another one only for null: `isNullable`. */
function resolved(schema, root) {
  let found = schema;
  for (let hops = 0; hops < MAX_HOPS; hops += 1) {
    const { $ref, allOf, ...own } = found;
    if (typeof $ref === "string") found = { ...pointed($ref, root), ...own };
    else if (Array.isArray(allOf) && allOf.length === 1) found = { ...allOf[0], ...own };
    else break;
  }
  const types = Array.isArray(found.type) ? found.type.filter((type) => type !== "null") : null;
  if (types?.length === 1) return { ...found, type: types[0], isNullable: types.length < found.type.length };
  const { anyOf, oneOf, ...own } = found;
  const options = anyOf ?? oneOf;
  const others = options?.filter((option) => option.type !== "null");
  if (others?.length === 1 && options.length === 2) return { ...resolved(others[0], root), ...own, isNullable: true };
  return found;
}

/** What a reference such as `#/$defs/Line` points to in a schema; nothing if it is not there. */
function pointed(reference, root) {
  if (!reference.startsWith("#")) return {};
  const names = reference.split("/").slice(1).map((name) => decodeURIComponent(name).replaceAll("~1", "/").replaceAll("~0", "~"));
  return names.reduce((value, name) => (value && Object.hasOwn(value, name) ? value[name] : null), root) ?? {};
}

function isObject(schema) {
  return schema.type === "object" || (schema.type === undefined && Boolean(schema.properties));
}

/** Reports the defaults once the form is there. */
function Started({ onStart }) {
  useState(() => { queueMicrotask(onStart); });
  return null;
}

/** What a value is before anybody has written it: its default, and what its field shows already, such as an empty box. */
function defaultsOf(given, root, isRequired = true, depth = 0) {
  const schema = resolved(given, root);
  if (schema.default !== undefined) return schema.default;
  if (schema.isNullable) return isRequired ? null : undefined;
  if (schema.type === "boolean") return false;
  if (!isRequired || !isObject(schema) || depth > MAX_DEPTH) return undefined;
  const required = new Set(schema.required ?? []);
  const values = Object.entries(schema.properties ?? {})
    .map(([name, property]) => [name, defaultsOf(property, root, required.has(name), depth + 1)])
    .filter(([, value]) => value !== undefined);
  return Object.fromEntries(values);
}

/** The choices of a schema, as `[value, label]`; null if it has none. */
function choicesOf(schema) {
  if (Array.isArray(schema.enum)) return schema.enum.map((value, index) => [value, schema.enumNames?.[index] ?? String(value)]);
  const options = schema.oneOf ?? schema.anyOf;
  if (options?.every((option) => "const" in option)) return options.map((option) => [option.const, option.title ?? String(option.const)]);
  return null;
}

const INPUT_TYPES = { email: "email", uri: "url", date: "date", "date-time": "text" };

function SchemaField({ name, schema: given, root, depth = 0, value, isRequired: isNamed, onChange: change }) {
  const schema = resolved(given, root);
  const isRequired = isNamed && !schema.isNullable;
  const onChange = isNamed && schema.isNullable ? (next) => change(next ?? null) : change;
  const choices = choicesOf(schema);
  const label = html`<bdi>${visible(name)}</bdi>${isRequired ? "" : html` <span class="muted small">optional</span>`}`;
  const hint = schema.description && html`<span dir="auto">${visible(schema.description)}</span>`;
  if (choices) {
    return html`
      <${Field} label=${label} hint=${hint}>
        ${(field) => html`
          <select ...${field} required=${isRequired} value=${String(choices.findIndex(([choice]) => choice === value))} onChange=${(event) => onChange(choices[event.currentTarget.value]?.[0])}>
            <option value="-1">${isRequired ? "Choose" : "Nothing"}</option>
            ${choices.map(([, text], index) => html`<option key=${index} value=${String(index)}>${visible(text)}</option>`)}
          </select>`}
      <//>`;
  }
  if (schema.type === "boolean") {
    return html`<div class="field"><label class="check"><input type="checkbox" checked=${value === true} onChange=${(event) => onChange(event.currentTarget.checked)} /><span>${label}</span></label>${hint && html`<p class="hint">${hint}</p>`}</div>`;
  }
  if (isObject(schema) && schema.properties && depth < MAX_DEPTH) {
    return html`
      <fieldset class="field fields">
        <legend>${label}</legend>
        ${hint && html`<p class="hint">${hint}</p>`}
        <${Properties} schema=${schema} root=${root} depth=${depth + 1} value=${value} onChange=${onChange} />
      </fieldset>`;
  }
  const items = schema.type === "array" ? choicesOf(resolved(schema.items ?? {}, root)) : null;
  if (items) return html`<${Choices} legend=${label} hint=${hint} choices=${items} value=${value ?? []} onChange=${onChange} />`;
  if (schema.type === "number" || schema.type === "integer") {
    return html`
      <${Field} label=${label} hint=${hint}>
        ${(field) => html`<input ...${field} type="number" required=${isRequired} step=${schema.type === "integer" ? "1" : "any"} min=${schema.minimum} max=${schema.maximum} value=${value ?? ""}
          onInput=${(event) => onChange(event.currentTarget.value === "" ? undefined : Number(event.currentTarget.value))} />`}
      <//>`;
  }
  const isAnything = ["anyOf", "oneOf", "allOf", "const", "properties"].some((word) => word in schema);
  if (schema.type === "string" || (schema.type === undefined && !isAnything)) {
    const isLong = !schema.format && (schema.maxLength === undefined || schema.maxLength > 200);
    const attributes = { dir: "auto", required: isRequired, minlength: schema.minLength, maxlength: schema.maxLength };
    const input = (event) => onChange(event.currentTarget.value === "" && !isRequired ? undefined : event.currentTarget.value);
    return html`
      <${Field} label=${label} hint=${hint}>
        ${(field) => (isLong
          ? html`<textarea ...${field} ...${attributes} rows="2" value=${value ?? ""} onInput=${input}></textarea>`
          : html`<input ...${field} ...${attributes} type=${INPUT_TYPES[schema.format] ?? "text"} value=${value ?? ""} onInput=${input} />`)}
      <//>`;
  }
  const blank = schema.type === "array" ? [] : isObject(schema) ? {} : null;
  return html`<${ValueField} name=${isRequired ? name : `${name} (optional)`} value=${value ?? blank} hint=${hint} isJson=${true} onChange=${onChange} />`;
}

/** Several choices of a list. */
function Choices({ legend, hint, choices, value, onChange }) {
  const id = useId();
  const toggle = (choice, isOn) => onChange(choices.map(([each]) => each).filter((each) => (each === choice ? isOn : value.includes(each))));
  return html`
    <fieldset class="field" aria-describedby=${hint ? id : undefined}>
      <legend>${legend}</legend>
      ${hint && html`<p class="hint" id=${id}>${hint}</p>`}
      ${choices.map(([choice, text]) => html`
        <label class="check" key=${text}><input type="checkbox" checked=${value.includes(choice)} onChange=${(event) => toggle(choice, event.currentTarget.checked)} /><span>${visible(text)}</span></label>`)}
    </fieldset>`;
}
