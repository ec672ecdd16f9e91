"""Wording in languages other than English: German, French, Spanish, Portuguese, Italian, Chinese and Japanese.

By the name of the feature of `wording` that has them too. Few words of each, the plainest ones: a question that none
fits is answered in full.
"""

from __future__ import annotations

PATTERNS = {
    "list": (
        r"\b(?:nenne?|gib|schlage?)\s+(?:mir\s+|uns\s+)?(?:\S+\s+){0,3}?(?:argumente|beispiele|gründe|ideen|methoden|möglichkeiten|tipps"
        r"|ursachen|vor-?|vorteile)\b",
        r"\b(?:cite|donne(?:z|-moi)?|énumère|propose|suggère)\b.{0,30}\b(?:avantages|causes|conseils|exemples|façons|idées|raisons)\b",
        r"\b(?:enumera|dame|da|menciona|nombra|sugiere|liste|cite|dê|sugira|elenca|dammi|suggerisci)\b.{0,30}"
        r"\b(?:causas|consejos|dicas|ejemplos|exemplos|formas|ideas|ideias|maneras|razones|razões|ventajas|vantagens|cause|consigli|esempi"
        r"|idee|modi|motivi|ragioni|vantaggi)\b",
        r"(?:列出|列举|举出|推荐|建议).{0,12}(?:方法|原因|例子|优点|理由|点|种|条)",
        r"(?:教えて|挙げて|提案して).{0,6}$",
    ),
    "points": (
        r"\b(?:was|welche)\s+(?:sind|waren|gibt)\s+(?:es\s+)?(?:die|einige)?",
        r"\bwelche\s+(?:\w+\s+)?(?:arten|auswirkungen|faktoren|folgen|gründe|methoden|möglichkeiten|nachteile|probleme|ursachen|vorteile)\b",
        r"\bquel(?:le)?s\s+(?:sont|étaient|ont été)\b",
        r"\b(?:cuáles|quais|quali)\s+(?:son|fueron|são|foram|sono|erano)\b",
        r"(?:有哪些|有什么|哪几)",
        r"(?:にはどのような|の(?:利点|原因|理由|方法)は何)",
    ),
    "advice": (
        r"\bwie\s+(?:kann|können|könnte|sollte)\s+(?:ich|man|wir|ein\w*|\w+)\b",
        r"\bcomment\s+(?:puis-je|peut-on|pouvons-nous|améliorer|éviter|gérer|réduire)\b",
        r"\b(?:cómo|como|come)\s+(?:puedo|podemos|se\s+puede|mejorar|posso|podemos|melhorar|possiamo|migliorare)\b",
        r"(?:如何|怎样|怎么)(?:才能)?(?:提高|改善|减少|避免|学习|保持|应对|培养|管理)",
        r"(?:するにはどうすれば|ためには)",
    ),
    "comparison": (
        r"\b(?:vergleiche?|unterschiede?|unterscheiden)\b",
        r"\b(?:compare[rz]?|différences?)\b",
        r"\b(?:compara(?:r)?|diferencias?|diferenças?|confronta|differenze)\b",
        r"(?:比较|区别|差异|不同)",
        r"(?:比較|違い)",
    ),
    "quantity": (
        r"\b(?:wie\s+(?:viele?|lange|weit|hoch|alt|groß)|combien|cuánt[oa]s?|quant[oaie]s?)\b",
        r"(?:多少|几个|多远|多高|多大|いくつ|何人)",
    ),
    "writing": (
        r"\b(?:schreibe?|verfasse?|rédige[rz]?|écris|écrivez|escrib[ea]|redacta|escreva|redija|scrivi)\b",
        r"(?:写一|写个|写封|撰写|書いて)",
    ),
    "given text": (
        r"\b(?:übersetze?|fasse?\s.*\szusammen|tradui[st](?:ez)?|résume[rz]?|traduce|resume|resumir|traduza|traduci|riassumi)\b",
        r"(?:翻译|总结|概括|以下|上述|訳して|要約)",
    ),
    "brevity": (
        r"\b(?:in\s+einem\s+(?:satz|wort)|kurz(?:\s+gefasst)?|en\s+(?:une|un)\s+(?:phrase|mot)|brièvement|en\s+una\s+(?:frase|palabra)"
        r"|brevemente|em\s+uma\s+frase|in\s+una\s+frase)\b",
        r"(?:一句话|简短|简要|一文で|簡潔に)",
    ),
    "fact": (
        r"^(?:wer\s+(?:ist|war|hat|schrieb|erfand)|wann|wo|qui\s+(?:a|est|était)|quand|où|quién|cuándo|dónde|quem|quando|onde|chi|dove)\b",
        r"(?:谁|什么时候|哪里|哪一年|誰|いつ|どこ)",
    ),
    "procedure": (
        r"\b(?:schritt\s+für\s+schritt|étape\s+par\s+étape|paso\s+a\s+paso|passo\s+a\s+passo|rezept|recette|receta|receita|ricetta)\b",
        r"(?:一步一步|逐步|步骤|食谱|手順)",
    ),
    "code": (r"(?:代码|程序|函数|算法|コード|プログラム)", r"\b(?:programm|funktion|código|codice)\b"),
}
