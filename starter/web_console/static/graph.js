/** Draws a team from the layout that the gateway has made (starter/diagram/layout.py); graph.css has its colours. */
import { html } from "./vendor/htm-preact-standalone.js";
import { count, useId } from "./ui.js";

/**
 * The drawing as SVG, in a region that scrolls. `lit` is the Set of the ids of nodes whose turn it is, and `taken` that
 * of edges that were taken, or a Map from their ids to how often.
 */
export function Graph({ drawing, lit = NONE, taken = NONE }) {
  const id = useId();
  const box = `0 0 ${drawing.width} ${drawing.height}`;
  return html`
    <div class="graph-region" role="region" tabindex="0" aria-label=${`Drawing of ${drawing.title}`}>
      <svg class="drawing" role="img" aria-labelledby=${`${id}-title ${id}-description`} width=${drawing.width}
        height=${drawing.height} viewBox=${box}>
        <title id=${`${id}-title`}>${drawing.title}</title>
        <desc id=${`${id}-description`}>${drawing.description}</desc>
        ${drawing.nodes.map((node) => html`<${Node} key=${node.id} node=${node} isLit=${lit.has(node.id)} />`)}
        ${drawing.edges.map((edge) => html`<${Edge} key=${edge.id} edge=${edge} isTaken=${taken.has(edge.id)} times=${taken.get?.(edge.id)} />`)}
      </svg>
    </div>`;
}

const NONE = new Set();

function Node({ node, isLit }) {
  const isInner = node.shape === "team" && node.depth % 2 === 1;
  const name = `node ${node.shape}${isInner ? " inner" : ""}${isLit ? " lit" : ""}`;
  return html`
    <g class=${name} data-speaker=${node.speaker} data-part=${node.part} data-resource=${node.resource}>
      <path class="outline" d=${node.outline} stroke-dasharray=${node.shape === "missing" ? "5 4" : undefined} />
      ${node.lines.map((line, index) => html`<text class=${index ? "note" : "title"} x=${line.x} y=${line.y}>${line.text}</text>`)}
    </g>`;
}

function Edge({ edge, isTaken, times }) {
  return html`
    <g class=${isTaken ? "edge taken" : "edge"} data-edges=${edge.edges?.join(" ") || undefined}>
      ${times && html`<title>taken ${count(times, "time")}</title>`}
      <path class="line" d=${edge.path} fill="none" stroke-dasharray=${edge.dashed ? "3 4" : undefined} />
      <path class="head" d=${edge.heads} />
      ${edge.label && html`<text class="label" x=${edge.label.x} y=${edge.label.y + 4}>${edge.label.text}</text>`}
    </g>`;
}

/**
 * The node of a speaker in a team, as events name them: `team` is the id of the team's manifest, such as
 * "Team/default/duo", and `part` the role of a speaker that is not a member. Undefined if it is not drawn.
 */
export function nodeOf(drawing, team, speaker, part) {
  const around = drawing.nodes.find((node) => node.resource === team && node.shape === "team");
  const inside = around ? drawing.nodes.filter((node) => node.parent === around.id) : [];
  return inside.find((node) => part && node.part === part) ?? inside.find((node) => node.speaker === speaker)
    ?? inside.find((node) => node.part === speaker);
}

/** The ids of the edges on the way from one node to the next, in `steps`, the ids of the nodes in order. */
export function edgesOnTheWay(drawing, steps) {
  const ways = new Set(steps.slice(1).map((end, index) => `${steps[index]} ${end}`));
  const taken = (edge) => ways.has(`${edge.start} ${edge.end}`) || (edge.twoWay && ways.has(`${edge.end} ${edge.start}`));
  return new Set(drawing.edges.filter(taken).map((edge) => edge.id));
}
